//! The build of missing programs.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use tokio::time::{Instant, sleep};

use super::{Data, Module, Places};
use crate::folders;
use crate::process::{Lifetime, Process};
use crate::progress::Progress;

/// The time limit of a build, and of waiting for another process that builds the same.
const BUILD_DEADLINE: Duration = Duration::from_secs(3600);
/// How often the progress of a build is checked.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

impl Places {
    pub(crate) async fn build_missing(&self, modules: &[&Module]) -> Result<()> {
        let mut incomplete = Vec::new();
        for module in modules {
            if !self.missing(module)?.is_empty() {
                incomplete.push(*module);
            }
        }
        let mut progress = Progress::new(incomplete.len());
        for module in incomplete {
            progress.step(format!("building {}", module.name));
            self.build(module, &mut progress).await.with_context(|| format!("building {}", module.name))?;
        }
        progress.finish();
        Ok(())
    }

    async fn build(&self, module: &Module, progress: &mut Progress) -> Result<()> {
        let folder = self.folder(module)?;
        fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
        let waiting = || progress.detail("waiting for another process that builds it");
        let _lock = folders::lock(&folder.join("lock"), BUILD_DEADLINE, waiting).await?;
        // Another process may have built them while this one waited for the lock.
        let packages = self.missing(module)?;
        if packages.is_empty() {
            return Ok(());
        }
        // A killed build left it. This process has the lock, so no other build is running.
        let fresh = folder.join("new");
        if fresh.exists() {
            fs::remove_dir_all(&fresh)?;
        }
        fs::create_dir(&fresh)?;

        let flags = module.build_flags();
        let mut list = vec!["list", "-deps", "-f", "{{if .Stale}}{{.ImportPath}}{{end}}"];
        list.extend(&flags);
        list.extend(&packages);
        progress.detail("downloading its modules");
        let total = module.ask_go(&list)?.lines().filter(|line| !line.is_empty()).count();

        let mut build = module.go(&["build", "-v", "-o"])?;
        // An interrupted build leaves its work here, where the next one removes it.
        build.env("GOTMPDIR", &fresh);
        build.arg(&fresh).args(&flags).args(&packages);
        let build = Process::start("build", &build, &fresh, Lifetime::Owned)?;
        let until = Instant::now() + BUILD_DEADLINE;
        let status = loop {
            tokio::select! {
                status = build.ended() => break status,
                () = sleep(LOOK_INTERVAL) => {
                    let log = fs::read_to_string(build.log()).unwrap_or_default();
                    // The log has lines about downloads beside the packages' names.
                    let done = log.lines().filter(|line| !line.starts_with("go: ")).count();
                    progress.detail(&format!("{done} of {total} packages"));
                }
            }
            if Instant::now() > until {
                build.kill().await?;
                bail!("it took longer than {BUILD_DEADLINE:?}\n{}", build.log_tail());
            }
        };
        ensure!(status.is_some_and(|status| status.success()), "go build failed\n{}", build.log_tail());

        if let Some(data) = &module.data {
            copy_data(module, data, &folder)?;
        }
        for (program, package) in module.programs {
            if packages.contains(package) {
                fs::rename(fresh.join(go_name(package)), folder.join(program))
                    .with_context(|| format!("moving {program} in place"))?;
            }
        }
        fs::remove_dir_all(&fresh)?;
        Ok(())
    }
}

/// The name that go gives a program: that of its package's folder, or of the one above where this is a version.
fn go_name(package: &str) -> &str {
    let mut elements = package.rsplit('/');
    let is_version = |name: &&str| name.strip_prefix('v').is_some_and(|number| number.parse::<u32>().is_ok());
    elements.find(|name| !is_version(name)).unwrap_or(package)
}

fn copy_data(module: &Module, data: &Data, folder: &Path) -> Result<()> {
    let source = module.ask_go(&["list", "-m", "-f", "{{.Dir}}", data.go_module])?;
    for (file, name) in data.files.iter().zip(data.names()) {
        let from = Path::new(source.trim()).join(data.folder).join(file);
        // Read and written instead of copied: the module cache is read-only, and a copy would be, too.
        let copied = fs::read(&from).and_then(|text| fs::write(folder.join(name), text));
        copied.with_context(|| format!("copying {}", from.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_names_no_program() {
        assert_eq!(go_name("go.etcd.io/etcd/server/v3"), "server");
        assert_eq!(go_name("sigs.k8s.io/kwok/cmd/kwok"), "kwok");
    }
}
