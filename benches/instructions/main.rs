//! Counts the instructions of `step` and `update_pod` with valgrind. Other load on the machine does not affect the
//! counts, so a change of a few per cent is visible.
//!
//! ```text
//! cargo bench --locked --bench instructions               counts, and compares with benches/instructions.json
//! cargo bench --locked --bench instructions -- --bless    counts, and writes that file
//! ```
//!
//! Why: `step` and `update_pod` are on the path of every change of every pod. Target: within 2 % of the committed counts;
//! a lower count is blessed too, so that it stays. With another compiler, C library or valgrind than those that
//! made the committed counts, the counts are printed and not compared; new ones are blessed in a commit of their own. A subject
//! without a committed count, or a committed count without a subject, is a failure on any machine. Without
//! valgrind nothing is counted. The allocator is the C library's: it gives a freed block to the next allocation of that size. With
//! mimalloc, an allocation costs 135 instructions more if the page of its size is full, which depends on unrelated objects.

mod baseline;
#[path = "../support/pods.rs"]
mod pods;
#[path = "../support/refused.rs"]
mod refused;
mod subjects;
mod valgrind;

use std::collections::BTreeMap;
use std::env;
use std::process::ExitCode;

use subjects::{SUBJECTS, Subject, UNRECORDED};

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let has = |flag: &str| args.iter().any(|arg| arg == flag);
    let done = if let Some(at) = args.iter().position(|arg| arg == valgrind::RUN) {
        run_one(args.get(at + 1).map_or("", String::as_str))
    } else if has("--list") {
        let listed: &[Subject] = if has("--ignored") { &[] } else { SUBJECTS };
        listed.iter().for_each(|subject| println!("{}: test", subject.name));
        Ok(())
    } else if has("--bench") {
        count(has("--bless"))
    } else {
        let chosen = |subject: &&Subject| {
            let mut filters = args.iter().filter(|arg| !arg.starts_with('-')).peekable();
            filters.peek().is_none() || filters.any(|filter| subject.name.contains(filter.as_str()))
        };
        SUBJECTS.iter().filter(chosen).try_for_each(|subject| run_one(subject.name))
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs a subject in this process and prints how often the counted operation ran.
fn run_one(name: &str) -> Result<(), String> {
    let subject = SUBJECTS.iter().find(|subject| subject.name == name).ok_or_else(|| format!("no subject {name:?}"))?;
    println!("{}", (subject.run)());
    Ok(())
}

fn count(bless: bool) -> Result<(), String> {
    if !valgrind::is_there() {
        println!("valgrind is not installed: no instructions counted");
        return Ok(());
    }
    if bless && env::var_os(UNRECORDED).is_some() {
        return Err(format!(
            "{UNRECORDED} is set, and the committed counts are those with a recorder: bless without it"
        ));
    }
    let mut counts = BTreeMap::new();
    for subject in SUBJECTS {
        counts.insert(subject.name.to_owned(), valgrind::count(subject)?);
    }
    if bless {
        return baseline::write(&counts);
    }
    baseline::compare(&counts)
}
