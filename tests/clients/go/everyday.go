// What an application does with a cache, by gomemcache: HOST:PORT.
package main

import (
	"bytes"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
)

func check(holds bool, what string) {
	if !holds {
		log.Fatal(what)
	}
}

func must(err error, what string) {
	if err != nil {
		log.Fatalf("%s: %v", what, err)
	}
}

func main() {
	client := memcache.New(os.Args[1])
	// The machine may be busy: not half a second, as is the default.
	client.Timeout = time.Minute
	must(client.Ping(), "ping")
	must(client.Set(&memcache.Item{Key: "go:a", Value: []byte("value"), Flags: 77}), "set")
	item, err := client.Get("go:a")
	must(err, "get")
	check(string(item.Value) == "value" && item.Flags == 77, "value and flags")
	_, err = client.Get("go:none")
	check(err == memcache.ErrCacheMiss, "miss")
	check(client.Add(&memcache.Item{Key: "go:a"}) == memcache.ErrNotStored, "add of what is there")
	must(client.Replace(&memcache.Item{Key: "go:a", Value: []byte("next")}), "replace")
	must(client.Append(&memcache.Item{Key: "go:a", Value: []byte(" one")}), "append")
	must(client.Prepend(&memcache.Item{Key: "go:a", Value: []byte("the ")}), "prepend")

	held, err := client.Get("go:a")
	must(err, "gets")
	check(string(held.Value) == "the next one", "append and prepend")
	held.Value = []byte("third")
	must(client.CompareAndSwap(held), "cas")
	check(client.CompareAndSwap(held) == memcache.ErrCASConflict, "cas of another value")

	must(client.Set(&memcache.Item{Key: "go:n", Value: []byte("9")}), "set a number")
	number, err := client.Increment("go:n", 3)
	must(err, "incr")
	check(number == 12, "incr")
	number, err = client.Decrement("go:n", 100)
	check(err == nil && number == 0, "decr stops at 0")

	large := bytes.Repeat([]byte("0123456789"), 100_000)
	must(client.Set(&memcache.Item{Key: "go:large", Value: large, Expiration: 100}), "large set")
	item, err = client.Get("go:large")
	check(err == nil && bytes.Equal(item.Value, large), "large get")
	err = client.Set(&memcache.Item{Key: "go:larger", Value: append(large, large...)})
	check(err != nil, "a value above the limit")

	keys := []string{"go:none"}
	for i := range 300 {
		key := fmt.Sprintf("go:many:%d", i)
		keys = append(keys, key)
		must(client.Set(&memcache.Item{Key: key, Value: []byte(key)}), "set of many")
	}
	many, err := client.GetMulti(keys)
	check(err == nil && len(many) == 300 && string(many["go:many:299"].Value) == "go:many:299", "multi-get")

	must(client.Touch("go:a", 1000), "touch")
	must(client.Set(&memcache.Item{Key: "go:gone", Value: []byte("x"), Expiration: -1}), "set expired")
	_, err = client.Get("go:gone")
	check(err == memcache.ErrCacheMiss, "an item that has expired")
	must(client.Delete("go:a"), "delete")
	check(client.Delete("go:a") == memcache.ErrCacheMiss, "delete of nothing")
	must(client.DeleteAll(), "flush_all")
	_, err = client.Get("go:large")
	check(err == memcache.ErrCacheMiss, "after flush_all")
	fmt.Println("gomemcache: all as expected")
}
