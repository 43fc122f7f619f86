//! Single situations: an owner is away or is lost, a client is replaced or handed over, a lane is full.

use super::world::VERSION;
use super::*;
use cached_core::kv::StoreOutcome;

/// Returns a world whose node owns `key:0`, while `key:1` and `key:2` belong to one other node and
/// `key:3` to the third.
fn small_world() -> (World, [usize; 2]) {
    let found = (0..).find_map(|seed| {
        let world = World::new(&mut Rng::new(seed), None);
        let owners = [0, 1, 2, 3].map(|number| world.owner_of(format!("key:{number}").as_bytes()));
        match owners {
            [None, Some(one), Some(same), Some(other)] if one == same && one != other => {
                Some((world, [one, other]))
            }
            _ => None,
        }
    });
    let (mut world, lanes) = found.expect("one of them");
    world.begin(&mut Rng::new(0));
    world.owners.iter_mut().for_each(|owner| owner.part_bytes = 64 << 10);
    (world, lanes)
}

#[test]
fn reads_miss_and_changes_fail_while_their_owner_is_away() {
    let (mut world, [b, c]) = small_world();
    world.ask(b"set key:0 0 0 1\r\nx\r\nset key:1 0 0 1\r\ny\r\nset key:3 0 0 1\r\nz\r\n");
    world.replies("STORED\r\nSTORED\r\nSTORED\r\n");
    let name = world.name_of(b);
    world.lose(b, false);
    world.ask(b"get key:1\r\nget key:0 key:1 key:3\r\nmg key:1 v\r\nmg key:1 v q\r\nme key:1\r\nmn\r\n");
    world.replies("END\r\nVALUE key:0 0 1\r\nx\r\nVALUE key:3 0 1\r\nz\r\nEND\r\nEN\r\nEN\r\nMN\r\n");
    for request in
        ["delete key:1", "incr key:1 1", "touch key:1 0", "mg key:1 N30 v", "ma key:1", "gat 0 key:1"]
    {
        world.ask(format!("{request}\r\nmn\r\n").as_bytes());
        world.replies(&format!("SERVER_ERROR node {name} is away\r\nMN\r\n"));
    }
    world.ask(b"delete key:1 noreply\r\nset key:1 0 0 5000\r\n");
    world.ask(&[&vec![b'x'; 5000][..], b"\r\nflush_all\r\nget key:0 key:3\r\n"].concat());
    world.replies(&format!(
        "SERVER_ERROR node {name} is away\r\nSERVER_ERROR flush_all has not reached node {name}\r\nEND\r\n"
    ));
    // A request that was sent may have been executed.
    world.ask(b"get key:3\r\nset key:3 0 0 1\r\nx\r\nget key:0\r\n");
    world.send(c, usize::MAX);
    let name = world.name_of(c);
    world.lose(c, false);
    world.replies(&format!(
        "END\r\nSERVER_ERROR the connection to node {name} was lost; the request may have been executed\r\nEND\r\n"
    ));
    world.with_lanes(|lanes, _| lanes.open(b));
}

/// A request that its owner does not execute fails only after a while, and then says why.
#[test]
fn a_request_that_no_node_executes_waits_and_then_fails() {
    let (mut world, [b, _]) = small_world();
    let name = world.name_of(b);
    let value = vec![b'x'; 100_000];
    let set = [&b"set key:1 0 0 100000\r\n"[..], &value, b"\r\n"].concat();
    for version in [7, VERSION] {
        world.owners[b].told_version = version;
        world.owners[b].refuses = u64::MAX;
        let requests = [&b"append key:1 0 0 1\r\nx\r\n"[..], b"get key:1 key:2\r\n", &set, b"get key:0\r\n"];
        world.ask(&requests.concat());
        world.finish();
        assert_eq!(world.bench.io.written, b"", "all of them wait");
        for _ in 0..3 {
            world.with_lanes(|lanes, _| lanes.set_gives_up(true));
            world.finish();
        }
        let reason = match version {
            7 => format!("node {name} has another map (version 7)"),
            _ => format!("the key's slot moves, or node {name} is still preparing it"),
        };
        world.replies(&format!("SERVER_ERROR {reason}\r\nEND\r\nSERVER_ERROR {reason}\r\nEND\r\n"));
        world.with_lanes(|lanes, _| lanes.set_gives_up(false));
        world.owners[b].refuses = 1;
        world.ask(&requests.concat());
        world.finish();
        world.with_lanes(|lanes, _| lanes.retry());
        world.owners[b].refuses = 0;
        world.replies("NOT_STORED\r\nEND\r\nSTORED\r\nEND\r\n");
        world.ask(b"delete key:1\r\n");
        world.replies("DELETED\r\n");
    }
}

/// A process that takes over begins the requests anew that wait until their owner executes them.
#[test]
fn requests_that_wait_are_handed_over() {
    let (mut world, [b, _]) = small_world();
    // The connection awaits its first reply before it passes the other requests on.
    world.owners[b].refuses = 1;
    let requests: &[u8] = b"set key:1 0 0 1\r\nx\r\nget key:1 key:2\r\nincr key:1 1\r\nget key:0\r\nge";
    world.ask(requests);
    world.finish();
    assert!(world.bench.connection.hand_over(false).is_none());
    assert!(world.bench.connection.take_back());
    let handed = world.bench.connection.hand_over(false).expect("it is at rest");
    assert_eq!(handed.input.escape_ascii().to_string(), requests.escape_ascii().to_string());
    world.bench.connection = Connection::resume_handed(client_info(), handed, false);
    world.bench.connection.join_ring(77);
    world.with_lanes(|lanes, _| lanes.retry());
    world.ask(b"t key:0\r\n");
    world.replies(
        "STORED\r\nVALUE key:1 0 1\r\nx\r\nEND\r\n\
         CLIENT_ERROR cannot increment or decrement non-numeric value\r\nEND\r\nEND\r\n",
    );
    assert!(!world.bench.connection.take_back());
}

#[test]
fn a_binary_client_is_told_to_try_again() {
    let (mut world, [b, _]) = small_world();
    world.lose(b, false);
    let delete = binary(0x04, b"key:1");
    let requests = [binary(0x00, b"key:1"), binary(0x09, b"key:1"), delete, binary(0x0a, b"")];
    world.ask(&requests.concat());
    world.finish();
    let statuses: Vec<u8> = {
        let mut rest = &world.bench.io.written[..];
        std::iter::from_fn(|| {
            let body_bytes = usize::from(*rest.get(11)?);
            let status = rest[7];
            rest = &rest[24 + body_bytes..];
            Some(status)
        })
        .collect()
    };
    assert_eq!(statuses, [0x01, 0x86, 0x00], "a quiet miss has no reply");
}

/// A retrieval that is read in steps does not see what the same client writes after it.
#[test]
fn a_retrieval_in_steps_is_read_before_later_changes() {
    let (mut world, [b, _]) = small_world();
    let value = vec![b'v'; 60_000];
    for key in ["key:1", "key:2"] {
        world.ask(&[format!("set {key} 0 0 60000\r\n").as_bytes(), &value, b"\r\n"].concat());
    }
    world.replies("STORED\r\nSTORED\r\n");
    world.owners[b].part_bytes = 1000;
    let keys = " key:2".repeat(20);
    for first in ["key:1", "key:0"] {
        world.ask(format!("get {first}{keys}\r\nset key:2 0 0 60000\r\n").as_bytes());
        world.ask(&[&value[..], b"\r\n"].concat());
        world.finish();
        let written = std::mem::take(&mut world.bench.io.written);
        let head = b"VALUE key:2 0 60000\r\n";
        assert_eq!(written.windows(head.len()).filter(|bytes| bytes == head).count(), 20);
        assert!(written.ends_with(b"\r\nEND\r\nSTORED\r\n"));
    }
}

#[test]
fn a_connection_is_handed_over_once_it_has_its_replies() {
    let (mut world, _) = small_world();
    world.ask(b"get key:1\r\nget key:0\r\nget ke");
    assert!(!world.bench.connection.is_at_rest() && world.bench.connection.hand_over(false).is_none());
    world.replies("END\r\nEND\r\n");
    let handed = world.bench.connection.hand_over(false).expect("it is at rest");
    assert_eq!((handed.phase, &handed.input[..]), (HandedPhase::Command, &b"get ke"[..]));
    world.bench.connection = Connection::resume_handed(client_info(), handed, false);
    world.bench.connection.join_ring(77);
    world.ask(b"y:1\r\n");
    world.replies("END\r\n");
}

/// Answers to an earlier client of the slot do not reach the next one.
#[test]
fn the_next_client_of_a_slot_gets_its_own_replies() {
    let (mut world, [b, _]) = small_world();
    world.ask(b"set key:1 0 0 5\r\nfirst\r\n");
    world.replies("STORED\r\n");
    world.ask(b"get key:1\r\n");
    world.send(b, usize::MAX);
    world.bench.connection = Connection::new(client_info());
    world.bench.connection.join_ring(78);
    world.ask(b"delete key:1\r\n");
    world.replies("DELETED\r\n");
}

#[test]
fn a_datagram_does_not_wait_for_another_node() {
    let (mut world, [b, _]) = small_world();
    let local = "127.0.0.1:11211".parse().expect("an address");
    let info = Arc::new(ConnInfo::new(9, Endpoints::Udp { local }, None, 0, 2));
    world.bench.connection = Connection::new(info);
    world.bench.connection.join_ring(79);
    world.ask(b"set key:0 0 0 1\r\nx\r\nget key:1 key:0\r\nset key:1 0 0 1\r\ny\r\n");
    let name = world.name_of(b);
    world.replies(&format!("STORED\r\nVALUE key:0 0 1\r\nx\r\nEND\r\nSERVER_ERROR node {name} is away\r\n"));
}

/// As without a ring, a value for which memory runs out while it arrives is refused at once.
#[test]
fn a_value_for_which_memory_runs_out_is_refused() {
    let mut replies = Vec::new();
    for is_in_ring in [false, true] {
        let (mut world, _) = small_world();
        world.bench.shared = shared(|settings| {
            limits(settings);
            settings.evict = false;
            settings.ring = world.bench.shared.settings.ring.clone().filter(|_| is_in_ring);
        });
        world.bench.connection = Connection::new(Arc::new(info()));
        if is_in_ring {
            world.bench.connection.join_ring(1);
        }
        let value_bytes = ITEM_BYTES_MAX - 1000;
        world.bench.io.pieces.push_back(format!("set key:0 0 0 {value_bytes}\r\nabc").into_bytes());
        world.bench.drive_until_it_waits();
        let kv = &world.bench.shared.kv;
        for bytes in [200_000, 20_000, 1000, 10] {
            let value = vec![b'x'; bytes];
            let store = |number: u32| {
                let key = format!("fill:{bytes}:{number}");
                kv.store(key.as_bytes(), kv.hash(key.as_bytes()), &value, &StoreOptions::default())
            };
            (0..).find(|number| store(*number) == StoreOutcome::OutOfMemory);
        }
        for _ in 0..200 {
            world.bench.io.pieces.push_back(vec![b'x'; 1400]);
            assert!(world.bench.drive_until_it_waits() < 50);
        }
        replies.push(String::from_utf8(world.bench.io.written).expect("text"));
    }
    assert_eq!(replies[0], "SERVER_ERROR out of memory storing object\r\n");
    assert_eq!(replies[1], replies[0]);
}

/// What depends on the requests before it waits for their replies.
#[test]
fn administrative_requests_wait_for_earlier_replies() {
    let (mut world, _) = small_world();
    world.ask(b"get key:1\r\nwatch\r\ncache_memlimit 1\r\nmn\r\n");
    assert_eq!(world.bench.io.written, b"");
    world.replies(
        "END\r\nERROR cannot pipeline other commands before watch\r\n\
         MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m\r\nMN\r\n",
    );
    world.ask(b"get key:1\r\nquit\r\n");
    assert!(!world.is_closed);
    world.replies("END\r\n");
    assert!(world.is_closed);
}

/// A request for every node is executed once, however long a lane has no room for it.
#[test]
fn a_flush_that_waits_for_room_is_executed_once() {
    let (mut world, [b, _]) = small_world();
    let request = format!("set key:1 0 0 4000 noreply\r\n{}\r\n", "x".repeat(4000));
    let count = 300;
    world.ask(&[request.repeat(count).as_bytes(), b"flush_all\r\nget key:1\r\n"].concat());
    let flushes = |world: &World| world.bench.shared.totals().flushes;
    assert_eq!(flushes(&world), 0, "the lane has no room");
    for _ in 0..20 {
        world.send(b, 30_000);
        while world.owners[b].step() {}
        world.receive(b, usize::MAX);
        if world.is_due {
            world.drive();
        }
    }
    world.replies("OK\r\nEND\r\n");
    assert_eq!(flushes(&world), 1);
    assert_eq!(world.owners[b].shared.totals().flushes, 1);
}

/// What a lost node has not delivered of a merged reply is a miss. Only a value that was begun ends
/// the connection.
#[test]
fn a_merged_reply_of_which_a_part_is_lost_has_misses() {
    for part_bytes in [40, 20] {
        let (mut world, [b, _]) = small_world();
        for key in ["key:0", "key:1", "key:2"] {
            world.ask(format!("set {key} 0 0 9\r\nabcdefghi\r\n").as_bytes());
        }
        world.replies(&"STORED\r\n".repeat(3));
        world.owners[b].part_bytes = part_bytes;
        world.ask(b"get key:1 key:2 key:0\r\nmn\r\n");
        world.send(b, usize::MAX);
        while world.owners[b].step() {}
        world.receive(b, usize::MAX);
        world.drive();
        world.lose(b, false);
        let value = |key| format!("VALUE {key} 0 9\r\nabcdefghi\r\n");
        match part_bytes {
            40 => world.replies(&format!("{}{}END\r\nMN\r\n", value("key:1"), value("key:0"))),
            _ => {
                world.replies(&value("key:1")[..20]);
                assert!(world.is_closed);
            }
        }
    }
}
