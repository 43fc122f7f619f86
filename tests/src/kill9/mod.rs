//! Kills the real process with SIGKILL under load. After the next start, everything acknowledged as
//! *journaled* or *stored* is present and not torn, and no change follows a lost one.
//!
//! Writers change their own objects over synapse, and make each change also to a reference in
//! memory ([`load`]). After a random number of acknowledgements the process is killed; in some
//! rounds again while it recovers. Then every object is read and compared with each writer's
//! knowledge ([`model`]), and the load continues, possibly while the process still recovers.
//!
//! Some rounds write back within milliseconds, others never; some log every change, others send
//! large ones to the store; segments are small, so that they are reused in every round.

pub mod load;
pub mod model;
pub mod process;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use blocker::Blocker;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use load::{Habits, Round, Seen};
use model::{Faults, Model};
use process::{Place, Process};

/// The server's store.
#[derive(Clone, Debug)]
pub enum Backend {
    /// A file store in the directory of the run.
    File,
    /// A pool of the Ceph cluster with this configuration file.
    Rados(PathBuf),
}

/// The options of a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The `cached` to kill.
    pub program: PathBuf,
    /// The directory for journal, sockets and log, which must be empty.
    pub directory: PathBuf,
    /// The store.
    pub backend: Backend,
    /// The number of rounds: load, kill, check.
    pub rounds: u64,
    /// The number of writers.
    pub writers: usize,
    /// The seed of all random choices.
    pub seed: u64,
    /// Whether writes to the journal bypass the page cache.
    pub direct: bool,
    /// Whether to print a line for each round.
    pub is_verbose: bool,
}

/// The results of a run.
#[derive(Debug, Default)]
pub struct Report {
    /// Rounds completed.
    pub rounds: u64,
    /// Processes killed, including those in recovery.
    pub kills: u64,
    /// Processes killed during their recovery.
    pub kills_in_recovery: u64,
    /// The number of records to replay, over all starts after a kill.
    pub replayed: u64,
    /// The observations of the writers.
    pub seen: Seen,
    /// The problems found.
    pub faults: Faults,
    /// A line for each fault and each unexpected response.
    pub lines: Vec<String>,
}

impl Report {
    /// Returns true if there was no problem.
    pub fn is_good(&self) -> bool {
        self.faults == Faults::default() && self.lines.is_empty()
    }
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { rounds, kills, kills_in_recovery, replayed, seen, faults, lines } = self;
        let Seen { cached, journaled, stored, flushed, .. } = seen;
        writeln!(
            f,
            "{rounds} rounds, {kills} kills, {kills_in_recovery} of them during recovery, {replayed} records replayed"
        )?;
        writeln!(
            f,
            "acknowledged: {cached} cached, {journaled} journaled, {stored} stored, {flushed} flushes"
        )?;
        let Faults { lost, torn, disordered, reused_versions } = faults;
        write!(
            f,
            "lost {lost}, torn {torn}, out of order {disordered}, versions reused {reused_versions}, other {}",
            lines.len() as u64 - (lost + torn + disordered + reused_versions).min(lines.len() as u64)
        )?;
        lines.iter().take(LINES_MAX).try_for_each(|line| write!(f, "\n  {line}"))
    }
}

/// The maximum number of printed faults.
const LINES_MAX: usize = 40;
/// The number of objects of a writer in each namespace.
const OBJECTS: usize = 5;
/// The time limit for the next acknowledgement during a round's load.
const PROGRESS_DEADLINE: Duration = Duration::from_secs(120);

/// Performs the run.
///
/// # Errors
/// Returns the reason why the run could not continue: a failed start, or a server that hangs.
pub fn run(options: &Options) -> Result<Report, String> {
    Run::new(options).run()
}

struct Run<'a> {
    options: &'a Options,
    place: Place,
    random: SmallRng,
    models: Vec<Model>,
    report: Report,
    habits: Habits,
}

impl<'a> Run<'a> {
    fn new(options: &'a Options) -> Self {
        let namespaces = load::namespaces();
        let model = |writer| Model::new(writer, OBJECTS, &namespaces[0], &namespaces);
        Self {
            options,
            place: Place::new(&options.directory, &options.program),
            random: SmallRng::seed_from_u64(options.seed),
            models: (0..options.writers).map(model).collect(),
            report: Report::default(),
            habits: Habits { journaled_bytes_max: u64::MAX, is_through: false, order_domains: 3 },
        }
    }

    fn run(mut self) -> Result<Report, String> {
        self.configure();
        let mut process = self.start()?;
        for round in 0..self.options.rounds {
            self.load(&mut process)?;
            self.report.kills += 1;
            // The journal's limits may change between starts, and so may the conditions for
            // flushing.
            self.configure();
            for _ in 0..self.random.random_range(0..3_u32) {
                self.kill_in_recovery()?;
            }
            process = self.start()?;
            self.check()?;
            self.report.rounds += 1;
            if self.options.is_verbose {
                println!("round {round}: {}", self.report.to_string().replace('\n', "; "));
            }
            if !self.report.is_good() {
                return Ok(self.report);
            }
        }
        self.end(process)?;
        Ok(self.report)
    }

    /// Writes a configuration for the next start, with newly drawn settings.
    fn configure(&mut self) {
        let random = &mut self.random;
        let journaled_bytes_max = [16 << 10, 256 << 10][random.random_range(0..2_usize)];
        let is_through = random.random_range(0..4) == 0;
        let age_ms = [0, 5, 50, 86_400_000][random.random_range(0..4_usize)];
        let limit_mib = random.random_range(8..14);
        self.habits = Habits { journaled_bytes_max, is_through, ..self.habits };
        let backend = match &self.options.backend {
            Backend::File => {
                format!("kind = \"file\"\ncreate = true\npath = \"{}\"", self.place.path("store").display())
            }
            Backend::Rados(conf) => {
                format!(
                    "kind = \"rados\"\npool = \"cached\"\nconf = \"{}\"\nroot = \"kill9\"",
                    conf.display()
                )
            }
        };
        let text = format!(
            "[objects]\nwrite = \"back\"\nwriter = \"cache\"\nmemory_bytes_max = \"16 MiB\"\n\
             dirty_bytes_max = \"2 MiB\"\nobject_bytes_max = \"64 KiB\"\ndirty_age_ms_max = {age_ms}\n\
             namespaces = [{{ name = \"plain\", write = \"back\", journal = false }}]\n\
             [objects.journal]\ncreate = true\ndirectory = \"{}\"\nsegment_bytes = \"1 MiB\"\nlimit_bytes = \"{limit_mib} MiB\"\n\
             direct = {}\ncommit_timeout_secs = 600\njournaled_bytes_max = {journaled_bytes_max}\nat_limit = \"{}\"\n\
             [objects.backend]\n{backend}",
            self.place.path("journal").display(),
            self.options.direct,
            if is_through { "through" } else { "wait" },
        );
        self.place.configure(&text);
    }

    fn start(&mut self) -> Result<Process, String> {
        let mut process = self.place.spawn();
        self.place.wait(&mut process)?;
        Ok(process)
    }

    /// Lets the writers write until enough changes are acknowledged. The writers notice when the
    /// server ends.
    fn load(&mut self, process: &mut Process) -> Result<(), String> {
        let client = Arc::new(self.place.connect().map_err(|error| format!("connecting: {error}"))?);
        let round = Round::default();
        let wanted = self.random.random_range(20..1500);
        let habits = self.habits;
        let seeds: Vec<u64> = self.models.iter().map(|_| self.random.random()).collect();
        let seen = std::thread::scope(|scope| {
            let writers: Vec<_> = (self.models.iter_mut().zip(seeds))
                .map(|(model, seed)| {
                    let (client, round) = (Arc::clone(&client), &round);
                    scope.spawn(move || load::run(model, &*client, round, habits, seed))
                })
                .collect();
            let is_running = || writers.iter().any(|writer| !writer.is_finished());
            // The number of acknowledged changes per second depends on the disk.
            let (mut before, mut progress) = (0, Instant::now());
            while before < wanted && is_running() && progress.elapsed() < PROGRESS_DEADLINE {
                std::thread::sleep(Duration::from_micros(200));
                let now = round.acknowledged.load(Ordering::Relaxed);
                if now > before {
                    (before, progress) = (now, Instant::now());
                }
            }
            round.is_ending.store(true, Ordering::SeqCst);
            process.kill();
            writers.into_iter().map(|writer| writer.join().expect("no writer panics")).collect::<Vec<_>>()
        });
        for seen in seen {
            let all = &mut self.report.seen;
            all.cached += seen.cached;
            all.journaled += seen.journaled;
            all.stored += seen.stored;
            all.flushed += seen.flushed;
            self.report.lines.extend(seen.wrong);
        }
        if round.acknowledged.load(Ordering::Relaxed) < wanted && self.report.lines.is_empty() {
            return Err(format!("no progress within {PROGRESS_DEADLINE:?}: {}", process.log_tail()));
        }
        Ok(())
    }

    /// Starts a process and kills it during its recovery: before it listens, as soon as it listens,
    /// or after some of its objects have been read.
    fn kill_in_recovery(&mut self) -> Result<(), String> {
        let mut process = self.place.spawn();
        let reads = match self.random.random_range(0..3) {
            0 => {
                // The kill can happen at any point of the start, because the delay is random.
                std::thread::sleep(Duration::from_micros(self.random.random_range(0..40_000)));
                0
            }
            1 => {
                self.place.wait(&mut process)?;
                0
            }
            _ => {
                self.place.wait(&mut process)?;
                1 + self.random.random_range(0..2 * OBJECTS)
            }
        };
        if reads > 0 {
            let client = self.place.connect().map_err(|error| format!("connecting: {error}"))?;
            let model = &self.models[self.random.random_range(0..self.models.len())];
            for at in 0..reads.min(model.len()) {
                let request = blocker::InfoRequest::new(model.object(at).clone());
                match blocker::executor::block_on(client.info(request)) {
                    Ok(_) | Err(blocker::Error::Missing) => {}
                    Err(error) => return Err(format!("info during recovery: {error}")),
                }
            }
        }
        process.kill();
        self.report.kills += 1;
        self.report.kills_in_recovery += 1;
        Ok(())
    }

    /// Compares the server's content with every writer's knowledge.
    fn check(&mut self) -> Result<(), String> {
        let client = self.place.connect().map_err(|error| format!("connecting: {error}"))?;
        self.report.replayed += replay_records(&client)?;
        for model in &mut self.models {
            let lines = &mut self.report.lines;
            let faults = model.check(&client, &mut |line| lines.push(line));
            self.report.faults.add(faults.map_err(|error| format!("reading back: {error}"))?);
        }
        Ok(())
    }

    /// Shuts the last process down. Then everything is in the store, and the journal has nothing to
    /// replay.
    fn end(&mut self, process: Process) -> Result<(), String> {
        let status = process.end()?;
        if !status.success() {
            return Err(format!("the orderly end has failed: {status}"));
        }
        let journal = self.place.path("journal");
        std::fs::remove_dir_all(&journal).map_err(|error| format!("{}: {error}", journal.display()))?;
        let process = self.start()?;
        self.check()?;
        process.end().map(drop)
    }
}

/// The metric for the number of records to replay at a start.
const REPLAY_RECORDS: &str = "cached_journal_replay_records";

/// Returns the number of records that the server's start found to replay.
fn replay_records(client: &dyn Blocker) -> Result<u64, String> {
    let metrics = blocker::executor::block_on(client.control().metrics());
    let metrics = metrics.map_err(|error| format!("metrics: {error}"))?;
    let pairs = blocker::metrics::render::pairs(&metrics);
    let found = pairs.iter().find(|pair| pair.name == REPLAY_RECORDS);
    Ok(match found.map(|pair| &pair.value) {
        Some(blocker::metrics::Number::Integer(number)) => *number,
        Some(blocker::metrics::Number::Float(number)) => *number as u64,
        None => 0,
    })
}

/// Returns a directory for a run. It is below the build directory, and thus on a real disk: `/tmp`
/// may be in memory.
///
/// # Panics
/// Panics if the directory cannot be created.
pub fn directory(parent: &Path, name: &str) -> PathBuf {
    let directory = parent.join(format!("{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::create_dir_all(&directory).expect("a directory");
    directory
}
