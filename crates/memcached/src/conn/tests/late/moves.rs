//! Slots that move between the nodes while a client's requests are on their way.

use super::requests::keys;
use super::world::VERSION;
use super::*;
use cached_core::kv::{DeleteOptions, ImportOptions, Imported, Kv};
use cached_ring::{Map, NodeIndex, Slot, slot_of};

/// The map of all nodes, and at most one slot on its way.
pub(super) struct Moves {
    /// The latest map.
    map: Arc<Map>,
    under_way: Option<Move>,
    /// Whether to print what happens.
    is_told: bool,
}

struct Move {
    slot: Slot,
    from: NodeIndex,
    to: NodeIndex,
    is_copied: bool,
}

/// Returns the map after `map`, in which a slot may have another owner.
fn next(map: &Map, versions: u64, change: Option<(Slot, NodeIndex)>) -> Arc<Map> {
    let mut owners = Box::new(std::array::from_fn(|_| NodeIndex(0)));
    for slot in Slot::all() {
        owners[usize::from(slot.number())] = map.owner(slot);
    }
    if let Some((slot, owner)) = change {
        owners[usize::from(slot.number())] = owner;
    }
    Arc::new(Map::new("main", map.version() + versions, map.nodes().to_vec(), owners).expect("a map"))
}

impl Moves {
    /// Tells every node of `world` which slots are its own.
    pub(super) fn new(world: &mut World) -> Moves {
        let map = world.with_lanes(|lanes, _| lanes.map().clone());
        assert_eq!(map.version(), VERSION);
        for slot in Slot::all() {
            for lane in 0..world.owners.len() {
                let name = world.name_of(lane);
                if map.node(map.owner(slot)).name != name {
                    world.owners[lane].away.insert(slot);
                }
            }
        }
        Moves { map, under_way: None, is_told: false }
    }

    /// Does one thing that the seed chooses.
    pub(super) fn step(&mut self, world: &mut World, rng: &mut Rng) {
        match rng.below(6) {
            0 => world.with_lanes(|lanes, _| lanes.retry()),
            1 => self.learn(world),
            2 => {
                let lane = rng.index(world.owners.len());
                world.owners[lane].version = self.map.version();
            }
            _ => {
                let commits = rng.permille(600);
                self.go_on(world, rng, commits);
            }
        }
    }

    /// Completes what has begun, and lets all nodes and requests know.
    pub(super) fn settle(&mut self, world: &mut World, rng: &mut Rng) {
        while self.under_way.is_some() {
            self.go_on(world, rng, true);
        }
        self.learn(world);
        world.owners.iter_mut().for_each(|owner| owner.version = self.map.version());
        for _ in 0..1000 {
            world.finish();
            if !world.with_lanes(|lanes, _| lanes.is_waiting()) {
                return;
            }
            world.with_lanes(|lanes, _| lanes.retry());
        }
        panic!("requests wait although every slot has an owner");
    }

    fn go_on(&mut self, world: &mut World, rng: &mut Rng, commits: bool) {
        let Some(mut the_move) = self.under_way.take() else {
            let slot = slot_of(key(rng).as_bytes());
            let from = self.map.owner(slot);
            let to = NodeIndex(((u64::from(from.0) + rng.within(1, 2)) % 3) as u16);
            let the_move = Move { slot, from, to, is_copied: false };
            if self.is_told {
                eprintln!("slot {} goes from {} to {} (node {})", slot.number(), from.0, to.0, world.name);
            }
            self.seal(world, &the_move);
            self.under_way = Some(the_move);
            return;
        };
        if !the_move.is_copied {
            self.copy(world, &the_move);
            the_move.is_copied = true;
            self.under_way = Some(the_move);
            return;
        }
        if self.is_told {
            eprintln!("{} {}", the_move.slot.number(), if commits { "is committed" } else { "is aborted" });
        }
        match commits {
            true => self.commit(world, &the_move),
            false => self.abort(world, &the_move),
        }
    }

    /// Returns the lane to a node; `None` for the node with the client.
    fn lane(&self, world: &mut World, node: NodeIndex) -> Option<usize> {
        let name = &self.map.node(node).name;
        (0..world.owners.len()).find(|lane| world.name_of(*lane) == *name)
    }

    /// Lets the node with the client know the latest map.
    fn learn(&mut self, world: &mut World) {
        let map = self.map.clone();
        world.with_ring(|ring, lanes| {
            lanes.set_map(map.clone(), &ring.own, |name| ring.peer_or_new(name));
            if map.version() > ring.map().version() {
                ring.apply(&map);
                ring.end_purge(ring.purges());
                ring.announce(&map);
            }
        });
    }

    fn seal(&mut self, world: &mut World, the_move: &Move) {
        match self.lane(world, the_move.from) {
            Some(lane) => {
                let owner = &mut world.owners[lane];
                (owner.version, owner.is_sealed) = (self.map.version(), true);
                owner.away.insert(the_move.slot);
                owner.complete_retrievals();
            }
            None => {
                self.learn(world);
                // Its words have the map before the worker has it: so the slot has no owner.
                let map = next(&self.map, 1, Some((the_move.slot, the_move.to)));
                world.with_ring(|ring, _| {
                    ring.apply(&map);
                    ring.announce(&map);
                });
            }
        }
    }

    fn kv(&self, world: &mut World, node: NodeIndex) -> Kv {
        let lane = self.lane(world, node);
        lane.map_or(&world.bench.shared, |lane| &world.owners[lane].shared).kv.clone()
    }

    fn copy(&mut self, world: &mut World, the_move: &Move) {
        let (from, to) = (self.kv(world, the_move.from), self.kv(world, the_move.to));
        remove(&to, the_move.slot);
        each_key(the_move.slot, |key| {
            let item = from.peek(key, from.hash(key), |item| {
                let options = ImportOptions {
                    client_flags: item.client_flags(),
                    cas: item.cas(),
                    expiry: item.expiry(),
                    idle_secs: 0,
                    fetched: item.fetched(),
                    stale: item.stale(),
                    token_sent: item.token_sent(),
                    key_binary: item.key_binary(),
                };
                (item.to_vec(), options)
            });
            if let Ok((value, options)) = item {
                if self.is_told {
                    eprintln!("{} is copied", key.escape_ascii());
                }
                assert_eq!(to.import(key, to.hash(key), &value, &options), Ok(Imported::Stored));
            }
        });
    }

    fn commit(&mut self, world: &mut World, the_move: &Move) {
        self.map = next(&self.map, 1, Some((the_move.slot, the_move.to)));
        let from = self.kv(world, the_move.from);
        if let Some(lane) = self.lane(world, the_move.from) {
            let owner = &mut world.owners[lane];
            (owner.version, owner.is_sealed) = (self.map.version(), false);
        }
        remove(&from, the_move.slot);
        match self.lane(world, the_move.to) {
            Some(lane) => {
                let owner = &mut world.owners[lane];
                owner.version = self.map.version();
                owner.away.remove(the_move.slot);
            }
            None => self.learn(world),
        }
    }

    fn abort(&mut self, world: &mut World, the_move: &Move) {
        match self.lane(world, the_move.from) {
            Some(lane) => {
                self.map = next(&self.map, 1, None);
                let owner = &mut world.owners[lane];
                (owner.version, owner.is_sealed) = (self.map.version(), false);
                owner.away.remove(the_move.slot);
            }
            None => {
                self.map = next(&self.map, 2, None);
                self.learn(world);
            }
        }
    }
}

/// Calls `each` for each key of a slot that requests may have.
fn each_key(slot: Slot, mut each: impl FnMut(&[u8])) {
    keys().filter(|key| slot_of(key.as_bytes()) == slot).for_each(|key| each(key.as_bytes()));
}

fn remove(kv: &Kv, slot: Slot) {
    each_key(slot, |key| _ = kv.delete(key, kv.hash(key), &DeleteOptions::default()));
}

/// While slots move, the client receives what one server would send, byte for byte.
#[test]
fn replies_are_those_of_one_server_while_slots_move() {
    let mut world = None;
    let (mut refused, mut moved) = (0, 0);
    test_kit::each_seed(300, |seed, is_told| {
        let rng = &mut Rng::new(seed);
        let (group, in_group) = (seed / 75, seed % 75);
        if in_group == 0 {
            world = None;
        }
        let limit = [None, Some(1), None, Some(3)][(group % 4) as usize];
        let (world, moves) = world.get_or_insert_with(|| {
            let mut world = World::new(&mut Rng::new(group), limit);
            let moves = Moves::new(&mut world);
            (world, moves)
        });
        moves.is_told = is_told;
        world.begin(rng);
        let is_binary = rng.permille(350);
        let mut script = Vec::new();
        for _ in 0..rng.within(1, 40) {
            if is_binary {
                binary_request(rng, &mut script);
            } else {
                text_request(rng, &mut script);
            }
        }
        let ends = rng.permille(300);
        let (is_busy, says_bye) = (rng.within(5, 80), script.len() < 4000 && rng.permille(300));
        let before = moves.map.version();
        world.play(rng, &script, ends, |world, rng| {
            if rng.permille(is_busy) {
                moves.step(world, rng);
            }
            if says_bye && rng.permille(20) {
                world.say_bye(rng.index(2));
            }
        });
        moved += moves.map.version() - before;
        moves.settle(world, rng);
        let expected = world.expected(&script, ends);
        assert_same(&world.bench.io.written, &expected.0, &script);
        assert_eq!(world.is_closed, expected.1, "{} of node {}", script.escape_ascii(), world.name);
        if !world.is_closed {
            assert!(matches!(&world.bench.connection.phase, Phase::Routed(routed) if !routed.has_places()));
        }
        refused += std::mem::take(&mut world.refused);
    });
    assert!(refused > 0 && moved > 0, "{refused} requests were refused, {moved} maps");
}
