//! What tells a process from every other one.

use std::fs;

use serde::{Deserialize, Serialize};

/// Identifies a process among all of this machine, past and future.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The process id.
    pub pid: i32,
    /// When it was started, in clock ticks since boot: field 22 of `/proc/PID/stat`.
    pub started: u64,
    /// The boot that these ticks count from: `/proc/sys/kernel/random/boot_id`.
    pub boot: String,
}

impl Identity {
    /// The identity of the process that has this pid now, and its state letter.
    pub(crate) fn of(pid: i32) -> Option<(Self, char)> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (state, started) = parse_stat(&stat)?;
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?.trim().to_owned();
        Some((Self { pid, started, boot }, state))
    }

    /// The identity of the running process that has this pid now. A zombie does not run.
    pub(crate) fn of_running(pid: i32) -> Option<Self> {
        Self::of(pid).filter(|(_, state)| !matches!(state, 'Z' | 'X')).map(|(identity, _)| identity)
    }

    /// Whether this very process runs.
    pub fn is_running(&self) -> bool {
        Self::of_running(self.pid).as_ref() == Some(self)
    }
}

/// State and start time from the text of `/proc/PID/stat`.
fn parse_stat(stat: &str) -> Option<(char, u64)> {
    // The second field, the command, is in parentheses and may itself hold blanks and parentheses.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let started = fields.nth(18)?.parse().ok()?;
    Some((state, started))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_and_start_time_are_found_behind_any_command_name() {
        let stat = "7 (a) R (b) S 1 7 7 0 -1 4194560 1 0 0 0 0 1 0 0 20 0 1 0 4242 9 9";
        assert_eq!(parse_stat(stat), Some(('S', 4242)));
        assert_eq!(parse_stat("7 (a"), None);
        assert_eq!(parse_stat("7 (a) S 1"), None);
    }
}
