//! Ordinary clients in other languages work during repeated upgrades: the programs in
//! `tests/clients`, each with a server of its own, because they flush.

use super::Upgradable;
use super::load::{Report, observe};
use crate::ending::SetOnDrop;
use crate::outside;
use crate::program::repository;
use crate::warm::client::Connection;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use test_kit::memory_directory;

/// The time limit for one run of a client on a busy machine.
const DEADLINE: Duration = Duration::from_secs(600);

/// A client's program, which gets host and port after its other arguments.
#[derive(Debug, Clone)]
pub struct Script {
    /// The libraries that the program uses.
    pub name: &'static str,
    program: PathBuf,
    arguments: Vec<PathBuf>,
}

/// Returns the clients that are available on this machine, and the reason why each other client is
/// missing. Python's packages are installed below `workshop`.
pub fn scripts(workshop: &Path) -> (Vec<Script>, Vec<String>) {
    let clients = repository().join("tests/clients");
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    match crate::python::install(&workshop.join("python-clients"), &clients.join("requirements.txt")) {
        Ok(programs) => {
            for (name, script) in [
                ("pymemcache", "everyday_pymemcache.py"),
                ("python-binary-memcached", "everyday_bmemcached.py"),
            ] {
                let arguments = vec![clients.join(script)];
                found.push(Script { name, program: programs.join("python"), arguments });
            }
        }
        Err(why) => missing.push(why),
    }
    let php = ["-r", "exit(extension_loaded('memcached') && extension_loaded('memcache') ? 0 : 1);"];
    let perl = ["-MCache::Memcached", "-MCache::Memcached::Fast", "-MMemcached::libmemcached", "-e1"];
    for (name, program, test, script) in [
        ("dalli", "ruby", &["-rdalli", "-e", "exit"][..], "everyday_dalli.rb"),
        ("PHP's memcached and memcache", "php", &php[..], "more/everyday.php"),
        ("Perl's three", "perl", &perl[..], "more/everyday.pl"),
    ] {
        let known = outside::find_program(program).filter(|program| {
            Command::new(program).args(test).output().is_ok_and(|output| output.status.success())
        });
        match known {
            Some(program) => found.push(Script { name, program, arguments: vec![clients.join(script)] }),
            None => missing.push(format!("{program} is missing, or {name}")),
        }
    }
    (found, missing)
}

/// Runs all clients, each during `upgrades` upgrades.
///
/// # Panics
/// Panics if a server does not start, or an upgrade fails.
pub fn run(scripts: &[Script], upgrades: u64) -> Report {
    let memory = memory_directory();
    let mut report = Report::default();
    std::thread::scope(|scope| {
        let running: Vec<_> = (scripts.iter().enumerate())
            .map(|(number, script)| {
                let file = memory.path().join(number.to_string());
                scope.spawn(move || run_one(script, &file, upgrades))
            })
            .collect();
        for (script, one) in scripts.iter().zip(running) {
            let Ok(mut one) = one.join() else {
                report.lines.push(format!("{}: an upgrade has failed", script.name));
                continue;
            };
            println!("{}: {} runs, {one}", script.name, one.runs);
            report.upgrades += one.upgrades;
            report.runs += one.runs;
            report.pauses.append(&mut one.pauses);
            report.lines.append(&mut one.lines);
        }
    });
    report
}

fn run_one(script: &Script, memory_file: &Path, upgrades: u64) -> Report {
    let mut server = Upgradable::start(&format!("-m 64 -t 2 -e {}", memory_file.display()), "");
    let (is_over, runs, is_upgraded) = (AtomicBool::new(false), AtomicU64::new(0), AtomicBool::new(false));
    let mut report = Report::default();
    let port = server.port;
    let failed = std::thread::scope(|scope| {
        let over = SetOnDrop(&is_over);
        let client = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) || runs.load(Ordering::Relaxed) == 0 {
                // Some of the programs expect an empty server.
                let flushed = Connection::open(port).and_then(|mut conn| conn.ask(b"flush_all\r\n"));
                if let Err(error) = flushed {
                    return Some(format!("{}: {error}", script.name));
                }
                let mut command = Command::new(&script.program);
                command.args(&script.arguments).args(["127.0.0.1", &port.to_string()]);
                let output = outside::run(&mut command, DEADLINE);
                if !output.status.success() {
                    return Some(format!("{}: {}", script.name, outside::text(&output)));
                }
                runs.fetch_add(1, Ordering::Relaxed);
            }
            None
        });
        let mut observer = Connection::open(port).expect("a connection");
        for _ in 0..upgrades {
            is_upgraded.store(false, Ordering::Relaxed);
            let upgraded = SetOnDrop(&is_upgraded);
            let observing = scope.spawn(|| observe(observer, &is_upgraded));
            server.upgrade();
            drop(upgraded);
            report.upgrades += 1;
            match observing.join().expect("no panic") {
                Ok((connection, pause)) => {
                    report.pauses.push(pause);
                    observer = connection;
                }
                Err(error) => {
                    report.lines.push(format!("{}: the observer: {error}", script.name));
                    break;
                }
            }
        }
        drop(over);
        client.join().unwrap_or_else(|_| Some(format!("{} has panicked", script.name)))
    });
    report.lines.extend(failed);
    report.runs = runs.into_inner();
    server.end();
    report
}
