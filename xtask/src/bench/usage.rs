//! What a process has used, from `/proc`.

use std::{fs, time::Duration};

use anyhow::{Context as _, Result};

/// Ticks per second of the times in `/proc`: part of Linux' interface to programs.
const TICKS_PER_SECOND: u64 = 100;

/// CPU time of all threads that the process ever had, user and system, to the hundredth of a second.
pub(super) fn cpu(pid: i32) -> Result<Duration> {
    let path = format!("/proc/{pid}/stat");
    let text = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    // The program's name, in parentheses, may contain anything. User and system time are the 14th and 15th field.
    let (_, fields) = text.rsplit_once(')').with_context(|| format!("{path} is not as it should be"))?;
    let ticks = fields.split_whitespace().skip(11).take(2).map(str::parse::<u64>).sum::<Result<u64, _>>()?;
    Ok(Duration::from_millis(ticks * 1000 / TICKS_PER_SECOND))
}

/// Resident memory in MiB: now, and the most there ever was.
pub(super) fn memory(pid: i32) -> Result<(f64, f64)> {
    let path = format!("/proc/{pid}/status");
    let text = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    let mebibytes = |key: &str| {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(key))
            .with_context(|| format!("{path} lacks {key}"))?;
        let kibibytes: f64 = line.trim().trim_end_matches(" kB").parse()?;
        anyhow::Ok(kibibytes / 1024.0)
    };
    Ok((mebibytes("VmRSS:")?, mebibytes("VmHWM:")?))
}
