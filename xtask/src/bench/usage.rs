//! The CPU time and memory of a process, from `/proc`.

use std::fs;

use anyhow::{Context as _, Result};

/// Ticks per second of the times in `/proc`: part of Linux' interface to programs.
const TICKS_PER_SECOND: f64 = 100.0;

/// CPU seconds of all threads that the process ever had, user and system, in steps of a hundredth.
pub(super) fn cpu(pid: i32) -> Result<f64> {
    let path = format!("/proc/{pid}/stat");
    let text = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    // The program's name, in parentheses, may contain anything. User and system time are the 14th and 15th field.
    let (_, fields) = text.rsplit_once(')').with_context(|| format!("{path} is not as it should be"))?;
    let ticks = fields.split_whitespace().skip(11).take(2).map(str::parse::<u32>).sum::<Result<u32, _>>()?;
    Ok(f64::from(ticks) / TICKS_PER_SECOND)
}

/// Resident memory in MiB: the present value, and the peak.
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
