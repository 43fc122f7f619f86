//! The costs of the contract: an empty layer, per call, and the file backend compared with plain
//! pread and pwrite.
//!
//! There is one line per figure. Two things that are compared run alternately in the same process
//! over the same amount of data, and the median of the rounds is given. Run it with `cargo bench -p
//! cached-blocker`; arguments select parts: `layers`, `memory`, `file`.

use std::alloc::{GlobalAlloc, Layout, System};
use std::fs::{File, OpenOptions};
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use blocker::executor::block_on;
use blocker::file::{Access, FileConfig};
use blocker::*;
use bytes::Bytes;

/// The system's allocator, counting.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call is forwarded unchanged to the system's allocator, which fulfils the trait's
// contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's obligations are those of System.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: `pointer` came from System, through `alloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A blocker that replies immediately, always with the same bytes, like a hit in a cache without
/// its cost.
struct Hit {
    data: Segments,
    events: EventHub,
}

fn no<T>() -> Reply<T> {
    Reply::err(Error::Unsupported("only reads and writes are measured".into()))
}

impl Blocker for Hit {
    fn capabilities(&self) -> Capabilities {
        Capabilities::full(4096)
    }
    fn read(&self, _: ReadRequest) -> Reply<ReadReply> {
        Reply::ok(ReadReply::new(self.data.clone(), 4096, Version(1)))
    }
    fn change(&self, request: ChangeRequest) -> Reply<ChangeReply> {
        match request.change {
            Change::Write { .. } => Reply::ok(ChangeReply::new(Version(1), 4096, Durability::Cached)),
            _ => no(),
        }
    }
    fn info(&self, _: InfoRequest) -> Reply<Info> {
        no()
    }
    fn list(&self, _: ListRequest) -> Reply<ListReply> {
        no()
    }
    fn flush(&self, _: FlushRequest) -> Reply<FlushReply> {
        no()
    }
    fn claim(&self, _: ClaimRequest) -> Reply<ClaimReply> {
        no()
    }
    fn invalidate(&self, _: InvalidateRequest) -> Reply<InvalidateReply> {
        no()
    }
    fn subscribe(&self) -> Subscription {
        self.events.subscribe()
    }
}

fn object(index: u64) -> ObjectId {
    ObjectId::new(Namespace::new("bench").unwrap(), Name::new(format!("object-{index:02}")).unwrap())
}

/// Takes the reply as a server does, with a future only if there is something to wait for.
fn answer<T: Unpin>(reply: Reply<T>) -> T {
    match reply {
        Reply::Ready(answer) => answer.unwrap(),
        pending => block_on(pending).unwrap(),
    }
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// Returns the CPU time of the whole process, including threads of a pool.
fn cpu_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn layers() {
    const CALLS: u32 = 200_000;
    const DEPTH: usize = 64;
    let data = Bytes::from(vec![7; 4096]);
    let hit: Arc<dyn Blocker> = Arc::new(Hit { data: data.clone().into(), events: EventHub::new() });
    let mut stack = Arc::clone(&hit);
    for _ in 0..DEPTH {
        stack = Arc::new(PassThrough::new(stack));
    }
    let object = object(0);
    let read = |backend: &dyn Blocker| {
        let reply = backend.read(ReadRequest::new(object.clone(), 0, 4096));
        assert!(matches!(black_box(reply), Reply::Ready(Ok(_))));
    };
    let write = |backend: &dyn Blocker| {
        let reply = backend.write(WriteRequest::new(object.clone(), 0, data.clone()));
        assert!(matches!(black_box(reply), Reply::Ready(Ok(_))));
    };
    let time = |backend: &dyn Blocker, call: &dyn Fn(&dyn Blocker)| {
        let start = Instant::now();
        (0..CALLS).for_each(|_| call(black_box(backend)));
        start.elapsed().as_nanos() as f64 / f64::from(CALLS)
    };
    for (what, call) in [("read", &read as &dyn Fn(&dyn Blocker)), ("write", &write)] {
        // The best time of each is used, because other work on the machine only adds time.
        let rounds: Vec<_> = (0..15).map(|_| (time(&*stack, call), time(&*hit, call))).collect();
        let stack_ns = rounds.iter().map(|(stack, _)| *stack).fold(f64::INFINITY, f64::min);
        let bare_ns = rounds.iter().map(|(_, bare)| *bare).fold(f64::INFINITY, f64::min);
        let layer_ns = (stack_ns - bare_ns) / DEPTH as f64;
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        (0..1000).for_each(|_| call(&*stack));
        let allocations = ALLOCATIONS.load(Ordering::Relaxed) - before;
        println!("empty_layer_{what}_ns {layer_ns:.1} (bar 30; the call itself {bare_ns:.1})");
        println!("empty_layer_{what}_allocations_per_1000_calls {allocations} (bar 0)");
        assert_eq!(allocations, 0, "a ready reply must not allocate");
    }
}

const FILES: u64 = 16;
const FILE_BYTES: u64 = 4 << 20;
const OP_BYTES: usize = 4096;
/// The size of the backend's header before an object's data.
const HEADER_BYTES: u64 = 4096;

/// Returns the position of the n-th operation: anywhere in 64 MiB, the same for both sides.
fn place(n: u64) -> (usize, u64) {
    let hash = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
    ((hash % FILES) as usize, hash / FILES % (FILE_BYTES / OP_BYTES as u64) * OP_BYTES as u64)
}

fn per_op(ops: u64, mut act: impl FnMut(u64)) -> f64 {
    let start = cpu_ns();
    (0..ops).for_each(&mut act);
    (cpu_ns() - start) as f64 / ops as f64
}

fn bare_files(dir: &std::path::Path) -> Vec<File> {
    let data = vec![1; FILE_BYTES as usize];
    let make = |index| {
        let path = dir.join(format!("bare-{index}"));
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path).unwrap();
        // The file is laid out like the backend's files, because the page cache depends on how a
        // file was first written.
        file.write_all_at(&data[..HEADER_BYTES as usize], 0).unwrap();
        file.write_all_at(&data, HEADER_BYTES).unwrap();
        file.sync_all().unwrap();
        file
    };
    (0..FILES).map(make).collect()
}

fn store(dir: &std::path::Path, config: FileConfig) -> (FileStore, Vec<ObjectId>) {
    let config = FileConfig { access: Access::Create, ..config };
    let store = FileStore::open_with(dir, config, Arc::new(SystemClock)).unwrap();
    let objects: Vec<_> = (0..FILES).map(object).collect();
    for object in &objects {
        let data = vec![1; FILE_BYTES as usize];
        let request = WriteFullRequest::new(object.clone(), data).durability(Durability::Stored);
        block_on(store.write_full(request)).unwrap();
    }
    (store, objects)
}

fn report(what: &str, rounds: &[(f64, f64)], bar: &str) {
    let bare = median(rounds.iter().map(|(bare, _)| *bare).collect());
    let ours = median(rounds.iter().map(|(_, ours)| *ours).collect());
    let ratio = median(rounds.iter().map(|(bare, ours)| ours / bare).collect());
    println!("{what} {ratio:.2} ({bar}; bare {bare:.0} ns CPU, file backend {ours:.0} ns)");
}

fn file_backend() {
    const OPS: u64 = 20_000;
    const ROUNDS: usize = 11;
    let dir = tempfile::tempdir_in(std::env::var_os("BENCH_DIR").unwrap_or("/tmp".into())).unwrap();
    let files = bare_files(dir.path());
    let (inline, objects) = store(&dir.path().join("inline"), FileConfig::default());
    let pooled_config = FileConfig { inline_write_bytes_max: 0, threads: 2, ..FileConfig::default() };
    let (pooled, _) = store(&dir.path().join("pooled"), pooled_config);
    let payload = Bytes::from(vec![9; OP_BYTES]);
    let mut buffer = vec![0; OP_BYTES];

    let read = |store: &FileStore, n| {
        let (file, offset) = place(n);
        let request = ReadRequest::new(objects[file].clone(), offset, OP_BYTES as u64);
        black_box(answer(store.read(request)));
    };
    let write = |store: &FileStore, n| {
        let (file, offset) = place(n);
        store.write(WriteRequest::new(objects[file].clone(), offset, payload.clone()))
    };

    let mut rounds = [const { Vec::new() }; 3];
    // The two are measured alternately, and the order changes each round, because the kernel's
    // state drifts.
    let compare = |rounds: &mut Vec<(f64, f64)>, bare: &mut dyn FnMut(u64), ours: &mut dyn FnMut(u64)| {
        let pair = if rounds.len().is_multiple_of(2) {
            let bare = per_op(OPS, &mut *bare);
            (bare, per_op(OPS, &mut *ours))
        } else {
            let ours = per_op(OPS, &mut *ours);
            (per_op(OPS, &mut *bare), ours)
        };
        rounds.push(pair);
    };
    for _ in 0..ROUNDS {
        compare(
            &mut rounds[0],
            &mut |n| {
                let (file, offset) = place(n);
                files[file].read_exact_at(&mut buffer, HEADER_BYTES + offset).unwrap();
                black_box(&buffer);
            },
            &mut |n| read(&inline, n),
        );
        let mut bare_write = |n| {
            let (file, offset) = place(n);
            files[file].write_all_at(&payload, HEADER_BYTES + offset).unwrap();
        };
        compare(&mut rounds[1], &mut bare_write, &mut |n| {
            answer(write(&inline, n));
        });
        // The requests go through the pool, 32 in flight, as in a server.
        let mut flight = Vec::with_capacity(32);
        compare(&mut rounds[2], &mut bare_write, &mut |n| {
            flight.push(write(&pooled, n));
            if flight.len() == 32 {
                for reply in flight.drain(..) {
                    block_on(reply).unwrap();
                }
            }
        });
    }
    // The difference has two components: building and dropping the request, then the system call.
    let request_ns = per_op(OPS, |n| {
        let (file, offset) = place(n);
        black_box(ReadRequest::new(objects[file].clone(), offset, OP_BYTES as u64));
    });
    let nowait_ns = per_op(OPS, |n| {
        let (file, offset) = place(n);
        let mut slices = [std::io::IoSliceMut::new(&mut buffer)];
        let flags = rustix::io::ReadWriteFlags::NOWAIT;
        black_box(rustix::io::preadv2(&files[file], &mut slices, HEADER_BYTES + offset, flags).unwrap());
    });
    println!("read_request_build_ns {request_ns:.0}");
    println!("bare_preadv2_nowait_4096_ns {nowait_ns:.0}");
    report("file_read_4096_cpu_ratio", &rounds[0], "bar 1.2");
    report("file_write_4096_cpu_ratio", &rounds[1], "bar 1.2");
    report("file_write_4096_pooled_depth32_cpu_ratio", &rounds[2], "no bar");
    inline.close().unwrap();
    pooled.close().unwrap();
}

fn memory() {
    let memory = Memory::default();
    let data = Bytes::from(vec![9; OP_BYTES]);
    block_on(memory.write_full(WriteFullRequest::new(object(0), vec![1; FILE_BYTES as usize]))).unwrap();
    let read = median(
        (0..7)
            .map(|_| {
                per_op(20_000, |n| {
                    let request = ReadRequest::new(object(0), place(n).1, OP_BYTES as u64);
                    black_box(block_on(memory.read(request)).unwrap());
                })
            })
            .collect(),
    );
    let write = median(
        (0..7)
            .map(|_| {
                per_op(20_000, |n| {
                    let request = WriteRequest::new(object(0), place(n).1, data.clone());
                    black_box(block_on(memory.write(request)).unwrap());
                })
            })
            .collect(),
    );
    println!("memory_read_4096_ns {read:.0}");
    println!("memory_write_4096_ns {write:.0}");
}

fn main() {
    let parts: [(&str, fn()); 3] = [("layers", layers), ("memory", memory), ("file", file_backend)];
    // Cargo adds its own options.
    let wanted: Vec<_> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    for (name, run) in parts {
        if wanted.is_empty() || wanted.iter().any(|wanted| wanted == name) {
            run();
        }
    }
}
