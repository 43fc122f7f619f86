// What an application does with a cache, by memjs (binary protocol): HOST:PORT.
const assert = require("assert");
const memjs = require("memjs");

async function main() {
  const client = memjs.Client.create(process.argv[2], { retries: 0, timeout: 60 });
  assert(await client.set("js:a", "value", { expires: 100 }));
  assert.strictEqual((await client.get("js:a")).value.toString(), "value");
  assert.strictEqual((await client.get("js:none")).value, null);
  assert.strictEqual(await client.add("js:a", "x", {}), false);
  assert(await client.replace("js:a", "next", {}));
  assert(await client.append("js:a", " one"));
  // memjs 1.3.2 sends APPEND for prepend() too, so that is left out.
  assert.strictEqual((await client.get("js:a")).value.toString(), "next one");

  const large = Buffer.alloc(1000000, "0123456789");
  assert(await client.set("js:large", large, {}));
  assert((await client.get("js:large")).value.equals(large));

  assert.strictEqual((await client.increment("js:n", 3, { initial: 40 })).value, 40);
  assert.strictEqual((await client.increment("js:n", 3, {})).value, 43);
  assert.strictEqual((await client.decrement("js:n", 100, {})).value, 0);

  await Promise.all(Array.from({ length: 200 }, (_, i) => client.set(`js:many:${i}`, `${i}`, {})));
  const many = await Promise.all(Array.from({ length: 200 }, (_, i) => client.get(`js:many:${i}`)));
  many.forEach((got, i) => assert.strictEqual(got.value.toString(), `${i}`));

  assert(await client.touch("js:a", 1000));
  assert(await client.delete("js:a"));
  assert.strictEqual(await client.delete("js:a"), false);
  // An entry of a ring counts its own items only.
  const least = process.env.CACHED_TEST_RING ? 0 : 200;
  assert(await new Promise((done) => client.stats((error, _, stats) => done(!error && stats.curr_items >= least))));
  await client.flush();
  assert.strictEqual((await client.get("js:large")).value, null);
  client.close();
  console.log("memjs: all as expected");
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
