//! The process itself: its name, and its metrics under the names that all Prometheus clients use, read from `/proc` at each
//! scrape.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use crate::metrics::Description;

/// Ticks per second of the times in `/proc`: part of Linux' interface to programs, and the same on every architecture
/// that this runs on.
const TICKS_PER_SECOND: f64 = 100.0;

const CPU: Description = Description {
    name: "process_cpu_seconds_total",
    kind: "counter",
    labels: &[],
    help: "CPU time used, user and system.",
};

const MEMORY: Description =
    Description { name: "process_resident_memory_bytes", kind: "gauge", labels: &[], help: "Memory in use." };

const DESCRIPTORS: Description =
    Description { name: "process_open_fds", kind: "gauge", labels: &[], help: "Open file descriptors." };

const START: Description = Description {
    name: "process_start_time_seconds",
    kind: "gauge",
    labels: &[],
    help: "When the process started, in seconds since 1970.",
};

/// The metrics of the process.
pub const DESCRIPTIONS: [Description; 4] = [CPU, MEMORY, DESCRIPTORS, START];

/// Adds `process_resident_memory_bytes`, `process_cpu_seconds_total`, `process_open_fds` and
/// `process_start_time_seconds`. What the system does not have is left out.
///
/// It belongs at the registry's root. A host that has these metrics already must not add it.
pub fn register(registry: &mut Registry) {
    registry.register_collector(Box::new(Process { start_time: start_time() }));
}

#[derive(Debug)]
struct Process {
    /// Seconds since the epoch.
    start_time: Option<f64>,
}

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        let mut write = |description: &Description, metric: &dyn EncodeMetric| {
            let Description { name, help, .. } = description;
            // The encoder appends a counter's suffix itself.
            let name = name.strip_suffix("_total").unwrap_or(name);
            metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)
        };
        if let Some(seconds) = read_stat().map(|stat| stat.cpu_seconds) {
            write(&CPU, &ConstCounter::new(seconds))?;
        }
        if let Some(bytes) = fs::read_to_string("/proc/self/status").ok().as_deref().and_then(resident_bytes)
        {
            write(&MEMORY, &ConstGauge::new(bytes))?;
        }
        if let Some(descriptors) = open_descriptors() {
            write(&DESCRIPTORS, &ConstGauge::new(descriptors))?;
        }
        if let Some(seconds) = self.start_time {
            write(&START, &ConstGauge::new(seconds))?;
        }
        Ok(())
    }
}

/// The name of this process for people: its Pod's name from the variable `POD_NAME`, else the host's name.
pub fn name() -> String {
    let pod = std::env::var("POD_NAME").ok().filter(|name| !name.is_empty());
    let host = || fs::read_to_string("/proc/sys/kernel/hostname").ok();
    pod.or_else(host).map_or_else(|| "unknown".to_owned(), |name| name.trim().to_owned())
}

/// What `/proc/self/stat` has.
#[derive(Debug, PartialEq)]
struct Stat {
    cpu_seconds: f64,
    /// Seconds after the machine's start.
    started: f64,
}

fn read_stat() -> Option<Stat> {
    parse_stat(&fs::read_to_string("/proc/self/stat").ok()?)
}

fn parse_stat(text: &str) -> Option<Stat> {
    // The second field is the program's name in parentheses, which may hold spaces and parentheses itself.
    let fields: Vec<&str> = text.get(text.rfind(')')? + 1..)?.split_ascii_whitespace().collect();
    // The manual counts from 1, and two fields are cut off.
    let seconds = |field: usize| Some(fields.get(field - 3)?.parse::<f64>().ok()? / TICKS_PER_SECOND);
    Some(Stat { cpu_seconds: seconds(14)? + seconds(15)?, started: seconds(22)? })
}

fn resident_bytes(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

fn open_descriptors() -> Option<u64> {
    let entries = fs::read_dir("/proc/self/fd").ok()?;
    // Reading the list takes a descriptor itself.
    (entries.count() as u64).checked_sub(1)
}

fn start_time() -> Option<f64> {
    let uptime: f64 =
        fs::read_to_string("/proc/uptime").ok()?.split_ascii_whitespace().next()?.parse().ok()?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_secs_f64();
    Some(now - uptime + read_stat()?.started)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_line_is_read_with_any_program_name() {
        let rest = "S 1 2 3 4 5 6 7 8 9 10 150 50 13 14 15 16 17 18 12345 20 21";
        for name in ["operator", "a b", ") S 9 9 (x", ""] {
            let stat = parse_stat(&format!("42 ({name}) {rest}\n"));
            assert_eq!(stat, Some(Stat { cpu_seconds: 2.0, started: 123.45 }), "{name}");
        }
        for broken in ["", "42 (x", "42 (x) S 1", "42 (x) S 1 2 3 4 5 6 7 8 9 10 a b 1 1 1 1 1 1 1"] {
            assert_eq!(parse_stat(broken), None, "{broken}");
        }
    }

    #[test]
    fn resident_memory_is_in_bytes() {
        assert_eq!(resident_bytes("Name:\tx\nVmRSS:\t    9216 kB\nThreads:\t3\n"), Some(9_437_184));
        assert_eq!(resident_bytes("Name:\tx\n"), None);
        assert_eq!(resident_bytes("VmRSS: 99999999999999999999 kB"), None);
    }

    #[test]
    fn a_scrape_has_memory_cpu_files_and_start_of_this_process() {
        let mut registry = Registry::default();
        register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        let value = |name: &str| -> f64 {
            let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
            line.unwrap_or_else(|| panic!("{name} is not in:\n{text}")).parse().unwrap()
        };
        assert!(value("process_resident_memory_bytes") > 100_000.0);
        assert!(value("process_cpu_seconds_total") >= 0.0);
        assert!(value("process_open_fds") >= 3.0);
        let age = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
            - value("process_start_time_seconds");
        assert!((-1.0..86_400.0).contains(&age), "{age}");
    }
}
