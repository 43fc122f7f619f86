#!/usr/bin/env perl
# What an application does with a cache, by Perl's three clients: HOST PORT.
use strict;
use warnings;
use Cache::Memcached;
use Cache::Memcached::Fast;
use Memcached::libmemcached qw(memcached_create memcached_server_add memcached_set memcached_get memcached_increment memcached_delete
    memcached_behavior_set MEMCACHED_BEHAVIOR_POLL_TIMEOUT MEMCACHED_BEHAVIOR_CONNECT_TIMEOUT);

my ($host, $port) = @ARGV;
my $large = "0123456789" x 90_000;
sub check { my ($holds, $what) = @_; die "perl: $what\n" unless $holds; }

# The machine may be busy: not a second or less, as is the default.
my %seconds = (
    "Cache::Memcached" => { connect_timeout => 60, select_timeout => 60 },
    "Cache::Memcached::Fast" => { connect_timeout => 60, io_timeout => 60 },
);
for my $class (sort keys %seconds) {
    my $c = $class->new({
        servers => ["$host:$port"], namespace => "$class:", compress_threshold => 100_000_000, %{ $seconds{$class} },
    });
    check($c->set("a", { nested => [1, 2, 3] }, 100), "$class: set");
    check($c->get("a")->{nested}[2] == 3, "$class: get");
    check(!defined $c->get("none"), "$class: miss");
    check(!$c->add("a", 1) && $c->replace("a", "new"), "$class: add and replace");
    check($c->set("n", 10) && $c->incr("n", 5) == 15 && $c->decr("n", 20) == 0, "$class: counters");
    check($c->set("large", $large) && $c->get("large") eq $large, "$class: large values");
    $c->set("many:$_", $_) for 0 .. 199;
    my $many = $c->get_multi((map { "many:$_" } 0 .. 199), "none");
    check(keys(%$many) == 200 && $many->{"many:199"} == 199, "$class: many at once");
    check($c->delete("a") && !defined $c->get("a"), "$class: delete");
    if ($class eq "Cache::Memcached::Fast") {
        check($c->set("text", "new") && $c->append("text", "-end") && $c->prepend("text", "start-"), "$class: append");
        my $found = $c->gets("text");
        check($found->[1] eq "start-new-end" && $c->cas("text", $found->[0], "swapped"), "$class: cas");
        check(defined $c->cas("text", $found->[0], "late") && $c->get("text") eq "swapped", "$class: an old token");
        check($c->touch("text", 1000), "$class: touch");
        my @results = $c->set_multi(map { ["more:$_", $_] } 0 .. 49);
        check(@results == 50 && $c->get("more:49") == 49, "$class: set of many");
        $c->nowait_push;
        check((values %{ $c->server_versions })[0] =~ /^1\.6/, "$class: version");
    } else {
        # An entry of a ring counts its own items only.
        check($c->stats(["misc"])->{total}{curr_items} >= ($ENV{CACHED_TEST_RING} ? 0 : 100), "$class: stats");
    }
    $c->disconnect_all;
}
my $c = memcached_create();
# In milliseconds.
memcached_behavior_set($c, $_, 60_000) for MEMCACHED_BEHAVIOR_POLL_TIMEOUT, MEMCACHED_BEHAVIOR_CONNECT_TIMEOUT;
memcached_server_add($c, $host, $port);
check(memcached_set($c, "lib:a", "1", 100) && memcached_get($c, "lib:a") eq "1", "libmemcached: set and get");
my $count = 0;
check(memcached_increment($c, "lib:a", 2, $count) && $count == 3, "libmemcached: increment");
check(memcached_delete($c, "lib:a") && !defined memcached_get($c, "lib:a"), "libmemcached: delete");
print "perl: Cache::Memcached $Cache::Memcached::VERSION, Fast $Cache::Memcached::Fast::VERSION, libmemcached: all as expected\n";
