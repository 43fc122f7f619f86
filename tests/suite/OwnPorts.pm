# Hands every test file ports of its own, so that files beside each other never take the same one: memcached's
# MemcachedTest.pm draws from all ports, those of outgoing connections among them.
package OwnPorts;
use strict;
use warnings;
use IO::Socket::INET;
require MemcachedTest;

my ($next, $end) = split /-/, $ENV{SUITE_PORTS};

no warnings 'redefine';
*MemcachedTest::free_port = sub {
    my $type = shift || 'tcp';
    while ($next < $end) {
        my $port = $next++;
        my @listen = $type eq 'tcp' ? (Listen => 1) : ();
        my $free = IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => $port, Proto => $type, @listen);
        return $port if $free;
    }
    die "no port left of $ENV{SUITE_PORTS}";
};

1;
