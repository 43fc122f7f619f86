# What an application does with a cache, by dalli in the binary protocol, and from 3.2 on in meta as well: HOST PORT.
require "dalli"

def check(holds, what)
  abort("dalli: #{what}") unless holds
end

protocols = Gem::Version.new(Dalli::VERSION) < Gem::Version.new("3.2") ? [:binary] : [:meta, :binary]
protocols.each do |protocol|
  options = { protocol: protocol, namespace: "rb-#{protocol}", compress: false, value_max_bytes: 4 * 1024 * 1024, socket_timeout: 60 }
  client = Dalli::Client.new("#{ARGV[0]}:#{ARGV[1]}", options)
  client.set("a", { "nested" => [1, 2, 3] })
  check(client.get("a") == { "nested" => [1, 2, 3] }, "objects, and with them flags")
  check(client.get("none").nil?, "miss")
  check(!client.add("a", 1), "add of what is there")
  check(client.replace("a", "next"), "replace")
  check(client.cas("a") { |value| value + " one" }, "cas")
  check(client.get("a") == "next one", "after cas")
  check(client.incr("n", 3, nil, 40) == 40 && client.incr("n", 3) == 43, "incr with a default")
  check(client.decr("n", 100) == 0, "decr stops at 0")
  large = "0123456789" * 90_000
  check(client.set("large", large, 100, raw: true) && client.get("large", raw: true) == large, "large values")
  200.times { |i| client.set("many:#{i}", i.to_s, 0, raw: true) }
  keys = (0...200).map { |i| "many:#{i}" } + ["none"]
  many = client.get_multi(*keys)
  check(many.size == 200 && many["many:199"].to_s == "199", "multi-get")
  quietly = client.respond_to?(:quiet) ? :quiet : :multi
  client.public_send(quietly) { 50.times { |i| client.set("quiet:#{i}", i) } }
  check(client.get("quiet:49") == 49, "quiet sets")
  check(client.fetch("fetched", 100) { "made" } == "made" && client.get("fetched") == "made", "fetch")
  check(client.touch("a", 1000), "touch")
  check(client.gat("a", 1000) == "next one", "get and touch")
  check(client.delete("a") && client.get("a").nil?, "delete")
  # An entry of a ring counts its own items only.
  check(client.stats.values.first["curr_items"].to_i >= (ENV["CACHED_TEST_RING"] ? 0 : 200), "stats")
  check(client.version.values.first.start_with?("1.6"), "version")
  client.close
end
puts "dalli #{Dalli::VERSION} (#{protocols.join(', ')}): all as expected"
