//! The cgroup of a node's Pods, in every hierarchy of this machine.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};

use crate::process::Identity;

const PREFIX: &str = "peerpod-operator";
/// How long killed processes may take to disappear.
const REMOVE_DEADLINE: Duration = Duration::from_secs(30);
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// A node's own cgroup. Its name contains the process that it belongs to, so that a later program can recognize a leftover one.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Cgroup {
    name: String,
}

impl Cgroup {
    /// Makes the cgroup for the processes of a namespace with this first process. Removes cgroups whose process has ended.
    pub(super) fn create(process: &Identity) -> Result<Self> {
        let hierarchies = hierarchies()?;
        remove_stale(&hierarchies);
        let cgroup = Self { name: name_of(process, pid_namespace()?) };
        for Hierarchy { root, version, .. } in &hierarchies {
            let dir = root.join(&cgroup.name);
            fs::create_dir(&dir).with_context(|| format!("creating the cgroup {}", dir.display()))?;
            match version {
                // A cpuset cgroup accepts no process before it has these values.
                Version::One => {
                    for file in ["cpuset.cpus", "cpuset.mems"] {
                        if let Ok(all) = fs::read_to_string(root.join(file)) {
                            fs::write(dir.join(file), all)?;
                        }
                    }
                }
                Version::Two => delegate(root)?,
            }
        }
        Ok(cgroup)
    }

    /// Its path from the top of each hierarchy.
    pub(super) fn path(&self) -> String {
        format!("/{}", self.name)
    }

    /// The memory of a Pod.
    pub(super) fn memory(&self, pod_uid: &str) -> Result<PodMemory> {
        for Hierarchy { root, version, .. } in hierarchies()? {
            for class in ["burstable/", "besteffort/", ""] {
                let dir = root.join(&self.name).join(format!("kubepods/{class}pod{pod_uid}"));
                if dir.join("memory.stat").exists() {
                    return memory(&dir, version);
                }
            }
        }
        bail!("the Pod {pod_uid} has no memory cgroup on the real node")
    }

    /// Removes it, once its killed processes are gone. Succeeds if there is none.
    pub(super) fn remove(&self) -> Result<()> {
        let until = Instant::now() + REMOVE_DEADLINE;
        for Hierarchy { root, .. } in hierarchies()? {
            let dir = root.join(&self.name);
            while let Err(error) = remove_tree(&dir) {
                if Instant::now() > until {
                    return Err(error).with_context(|| format!("removing the cgroup {}", dir.display()));
                }
                sleep(LOOK_INTERVAL);
            }
        }
        Ok(())
    }
}

/// The memory of a Pod on the real node, by its cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodMemory {
    /// Bytes that no file backs.
    pub anonymous: u64,
    /// Bytes of files, such as the program's. The kernel charges them to whoever reads a file first, and takes them back before it kills.
    pub files: u64,
    /// The highest number of bytes so far, with or without a file behind them. A memory limit applies to these.
    pub peak: u64,
    /// How many processes the kernel killed for lack of memory, in the containers that exist.
    pub kills: u64,
}

fn memory(dir: &Path, version: Version) -> Result<PodMemory> {
    let (anonymous, files, peak, events) = match version {
        Version::One => ("total_rss", "total_cache", "memory.max_usage_in_bytes", "memory.oom_control"),
        Version::Two => ("anon", "file", "memory.peak", "memory.events"),
    };
    let most = dir.join(peak);
    let most = fs::read_to_string(&most).with_context(|| format!("reading {}", most.display()))?;
    let mut kills = value(&dir.join(events), "oom_kill")?;
    if version == Version::One {
        // In the first version a cgroup does not count the kills of its children.
        for entry in fs::read_dir(dir).with_context(|| format!("reading {}", dir.display()))? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                kills += value(&entry.path().join(events), "oom_kill")?;
            }
        }
    }
    Ok(PodMemory {
        anonymous: value(&dir.join("memory.stat"), anonymous)?,
        files: value(&dir.join("memory.stat"), files)?,
        peak: most.trim().parse()?,
        kills,
    })
}

/// A number from a file with a line for each.
fn value(file: &Path, key: &str) -> Result<u64> {
    let text = fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
    let of_key = |line: &str| line.strip_prefix(key)?.strip_prefix(' ').map(str::to_owned);
    let value = text.lines().find_map(of_key).with_context(|| format!("{} has no {key}", file.display()))?;
    value.trim().parse().with_context(|| format!("{key} in {}", file.display()))
}

struct Hierarchy {
    root: PathBuf,
    version: Version,
    /// Of version one with the names of its controllers, separated by commas: the folder may have other names.
    options: String,
}

impl Hierarchy {
    /// Whether it is of version one and has this controller.
    fn has(&self, controller: &str) -> bool {
        self.version == Version::One && self.options.split(',').any(|it| it == controller)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// The mounted cgroup hierarchies.
fn hierarchies() -> Result<Vec<Hierarchy>> {
    let mounts = fs::read_to_string("/proc/self/mounts").context("reading /proc/self/mounts")?;
    Ok(parse(&mounts))
}

fn parse(mounts: &str) -> Vec<Hierarchy> {
    let hierarchy = |line: &str| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let root = PathBuf::from(fields.next()?);
        let version = match fields.next()? {
            "cgroup" => Version::One,
            "cgroup2" => Version::Two,
            _ => return None,
        };
        Some(Hierarchy { root, version, options: fields.next()?.to_owned() })
    };
    mounts.lines().filter_map(hierarchy).collect()
}

/// Checks that a kubelet can account for its Pods here. The error says what is missing.
pub(super) fn usable() -> Result<()> {
    let hierarchies = hierarchies()?;
    let all = hierarchies
        .iter()
        .find(|it| it.version == Version::Two && it.root.join("cgroup.controllers").exists());
    let unified = all.map(|it| fs::read_to_string(it.root.join("cgroup.controllers"))).transpose()?;
    for controller in ["cpu", "memory", "pids"] {
        let offered =
            unified.iter().any(|names| names.split_ascii_whitespace().any(|name| name == controller));
        let own = hierarchies.iter().any(|it| it.has(controller));
        if !offered && !own {
            bail!("the cgroup controller {controller} is not there");
        }
    }
    if let Some(Hierarchy { root, .. }) = all {
        let read = |file: &str| fs::read_to_string(root.join(file)).unwrap_or_default();
        // Only the real top, which has no type, may have processes and delegate controllers. A container's top is none.
        let is_top = !root.join("cgroup.type").exists();
        let delegated = read("cgroup.subtree_control");
        let offered = unified.as_deref().unwrap_or_default().split_ascii_whitespace();
        let lacks =
            offered.filter(|name| !delegated.split_ascii_whitespace().any(|it| it == *name)).count() > 0;
        if !is_top && lacks && !read("cgroup.procs").trim().is_empty() {
            bail!(
                "{} has processes, so it can delegate no controller; move them into a cgroup below it",
                root.display()
            );
        }
    }
    for Hierarchy { root, .. } in &hierarchies {
        let access = rustix::fs::access(root, rustix::fs::Access::WRITE_OK);
        access.with_context(|| format!("no cgroup can be made in {}", root.display()))?;
    }
    Ok(())
}

/// Enables the controllers of the second version for the cgroups below.
fn delegate(root: &Path) -> Result<()> {
    let offered = fs::read_to_string(root.join("cgroup.controllers"))?;
    let all: Vec<_> = offered.split_ascii_whitespace().map(|name| format!("+{name}")).collect();
    let file = root.join("cgroup.subtree_control");
    fs::write(&file, all.join(" ")).with_context(|| format!("writing {}", file.display()))
}

/// Removes the cgroups of programs that were killed before they could.
fn remove_stale(hierarchies: &[Hierarchy]) {
    let Ok(namespace) = pid_namespace() else { return };
    for Hierarchy { root, .. } in hierarchies {
        for entry in fs::read_dir(root).into_iter().flatten().flatten() {
            if entry.file_name().to_str().is_some_and(|name| is_stale(name, namespace)) {
                // The removal fails if the cgroup still has a process. Then the cgroup is in use and stays.
                let _ = remove_tree(&entry.path());
            }
        }
    }
}

/// The name of the cgroup of this process in this process namespace.
fn name_of(process: &Identity, namespace: u64) -> String {
    format!("{PREFIX}.{namespace}.{}.{}", process.pid, process.started)
}

/// The number of this process's process namespace. No other one has it at the same time.
fn pid_namespace() -> Result<u64> {
    Ok(fs::metadata("/proc/self/ns/pid").context("looking at /proc/self/ns/pid")?.ino())
}

/// Whether a cgroup of this name belongs to a process that has ended. Unknown for processes of another namespace, so false.
fn is_stale(name: &str, namespace: u64) -> bool {
    let numbers = || {
        let mut numbers = name.strip_prefix(PREFIX)?.strip_prefix('.')?.split('.');
        let numbers = [numbers.next()?, numbers.next()?, numbers.next()?].map(str::parse::<u64>);
        Some(numbers)
    };
    let Some([Ok(of), Ok(pid), Ok(started)]) = numbers() else { return false };
    let Ok(pid) = i32::try_from(pid) else { return false };
    of == namespace && Identity::of_running(pid).is_none_or(|it| it.started != started)
}

/// Removes a cgroup and those below it, which have no processes.
fn remove_tree(dir: &Path) -> std::io::Result<()> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        // The kernel removes a cgroup's files with it.
        if entry.file_type()?.is_dir() {
            remove_tree(&entry.path())?;
        }
    }
    match fs::remove_dir(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn both_versions_are_found_where_they_are_mounted() {
        let mounts = "proc /proc proc rw 0 0\ncgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        let found: Vec<_> =
            parse(mounts).into_iter().map(|it| (it.root.display().to_string(), it.version)).collect();
        let expected =
            [("/sys/fs/cgroup/cpu,cpuacct", Version::One), ("/sys/fs/cgroup/unified", Version::Two)];
        assert_eq!(found, expected.map(|(root, version)| (root.to_owned(), version)));
        assert_eq!(["cpu", "cpuacct", "memory"].map(|it| parse(mounts)[0].has(it)), [true, true, false]);
    }

    #[test]
    fn a_cgroup_is_stale_if_its_process_is_gone() {
        let own = Identity::of_running(std::process::id().try_into().unwrap()).unwrap();
        let another_with_the_same_pid = Identity { started: own.started + 1, ..own.clone() };
        assert!(!is_stale(&name_of(&own, 7), 7));
        assert!(is_stale(&name_of(&another_with_the_same_pid, 7), 7));
        assert!(!is_stale(&name_of(&another_with_the_same_pid, 8), 7), "its process may run unseen");
        for name in ["system.slice", PREFIX, "peerpod-operator.7.mine", "peerpod-operator-7.1.2"] {
            assert!(!is_stale(name, 7), "{name} belongs to another program");
        }
    }

    #[test]
    fn a_cgroup_is_stale_if_its_process_is_a_zombie() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let process = Identity::of_running(child.id().try_into().unwrap()).unwrap();
        let name = name_of(&process, 7);
        assert!(!is_stale(&name, 7));
        child.kill().unwrap();
        let until = Instant::now() + REMOVE_DEADLINE;
        while !is_stale(&name, 7) {
            assert!(Instant::now() < until, "it is a zombie");
            sleep(LOOK_INTERVAL);
        }
        child.wait().unwrap();
    }
}
