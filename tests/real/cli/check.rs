//! `peerpod-operator check` with a real libvirtd. It asks no API server, so there is none.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Output, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use cluster::process::Lifetime;
use peers::libvirt::{Libvirtd, QemuLibvirtd};
use serde_json::{Value, json};
use tempfile::TempDir;
use testbed::{MountedFolder, Settings};
use tokio::{process::Command, time::timeout};

use crate::support::PROGRAM;

/// The time limit of a check: its own deadline and the start of a program on a busy machine.
const LIMIT: Duration = Duration::from_secs(30);

/// A secret that the program must never print.
const HUSH: &str = "hush-hush-4711";

/// A pair of mounted folders.
struct Folders(TempDir);

impl Folders {
    fn new(settings: &Settings) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        MountedFolder::create(dir.path().join("settings"), &settings.config_map)?;
        MountedFolder::create(dir.path().join("credentials"), &settings.secret)?;
        Ok(Self(dir))
    }

    fn settings(&self) -> PathBuf {
        self.0.path().join("settings")
    }

    fn credentials(&self) -> PathBuf {
        self.0.path().join("credentials")
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command.env_clear().arg("check").args(arguments);
        command.arg("--settings-dir").arg(self.settings()).arg("--credentials-dir").arg(self.credentials());
        command.stdin(Stdio::null()).kill_on_drop(true);
        command
    }

    async fn check(&self, arguments: &[&str]) -> Result<Output> {
        let output = timeout(LIMIT, self.command(arguments).output());
        let output = output.await.context("the check takes too long")??;
        for printed in [&output.stdout, &output.stderr] {
            let printed = String::from_utf8_lossy(printed);
            ensure!(!printed.contains(HUSH), "a secret was printed: {printed}");
        }
        ensure!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(output)
    }

    /// Runs the check with standard output redirected.
    async fn check_into(&self, stdout: impl Into<Stdio>, arguments: &[&str]) -> Result<Output> {
        let child = self.command(arguments).stdout(stdout).stderr(Stdio::piped()).spawn()?;
        Ok(timeout(LIMIT, child.wait_with_output()).await.context("the check takes too long")??)
    }

    /// The exit code and the JSON report.
    async fn report(&self) -> Result<(i32, Value)> {
        let output = self.check(&["-o", "json"]).await?;
        let report = serde_json::from_slice(&output.stdout)
            .with_context(|| format!("not one JSON document: {}", String::from_utf8_lossy(&output.stdout)))?;
        Ok((output.status.code().context("it was killed")?, report))
    }

    /// The exit code and the text report.
    async fn text(&self) -> Result<(i32, String)> {
        let output = self.check(&[]).await?;
        Ok((output.status.code().context("it was killed")?, String::from_utf8(output.stdout)?))
    }
}

async fn libvirtd() -> Result<(TempDir, Libvirtd)> {
    let dir = tempfile::tempdir()?;
    let libvirtd = Libvirtd::start(&dir.path().join("l"), Lifetime::Owned).await?;
    Ok((dir, libvirtd))
}

fn settings(libvirtd: &Libvirtd) -> Settings {
    Settings::libvirt(&libvirtd.host().uri().to_string())
}

/// The finding about a subject.
fn finding<'a>(report: &'a Value, subject: &str) -> &'a Value {
    let findings = report["providers"][0]["cloud"]["findings"].as_array();
    findings.into_iter().flatten().find(|it| it["subject"] == subject).unwrap_or(&Value::Null)
}

fn setting<'a>(report: &'a Value, key: &str) -> &'a Value {
    let settings = report["providers"][0]["settings"].as_array();
    settings.into_iter().flatten().find(|it| it["key"] == key).unwrap_or(&Value::Null)
}

#[tokio::test]
async fn right_settings_are_reported_with_what_the_cloud_has_and_nothing_is_changed() -> Result<()> {
    let (_dir, libvirtd) = libvirtd().await?;
    let host = libvirtd.host();
    let folders = Folders::new(&settings(&libvirtd))?;

    let (code, report) = folders.report().await?;
    assert_eq!((code, &report["version"], &report["result"]), (0, &json!(1), &json!("ok")), "{report:#}");
    let uri = json!({
        "key": "LIBVIRT_URI", "source": "config_map", "value": host.uri().to_string(), "hidden": false, "used": true,
        "verdict": "ok", "remarks": [],
    });
    assert_eq!(*setting(&report, "LIBVIRT_URI"), uri);
    assert_eq!(finding(&report, "read VMs")["outcome"], "untried");
    assert_eq!(finding(&report, "look up VMs")["text"], "libvirt shows 1 domain, 0 of them named podvm-…");

    host.start_pod_vm("podvm-web-1a2b3c4d").await?;
    let (domains, volumes) = (host.virsh().domains().await?, host.virsh().volumes("default").await?);
    let (code, report) = folders.report().await?;
    assert_eq!(code, 0, "{report:#}");
    for (subject, outcome, text) in [
        ("hypervisor", "works", "TEST 0.0.2, libvirt "),
        ("pool", "works", "default is active, with 3 volumes and the folder /pool"),
        ("look up VMs", "works", "libvirt shows 2 domains, 1 of them named podvm-…"),
        (
            "read VMs",
            "works",
            "check read the definition of podvm-web-1a2b3c4d; it has cloud-api-adaptor's sign",
        ),
        ("look up volumes", "works", "libvirt found /pool/podvm-web-1a2b3c4d-root.qcow2"),
        ("write", "works", "libvirt looked for it"),
        ("delete VMs and volumes", "untried", "no dry run"),
    ] {
        let found = finding(&report, subject);
        assert_eq!(found["outcome"], outcome, "{report:#}");
        assert!(found["text"].as_str().is_some_and(|it| it.contains(text)), "{found:#}");
    }
    assert_eq!(host.virsh().domains().await?, domains);
    assert_eq!(host.virsh().volumes("default").await?, volumes);
    assert_eq!(host.virsh().run(&["domstate", "podvm-web-1a2b3c4d"]).await?.trim(), "running");

    let (code, text) = folders.text().await?;
    assert_eq!(code, 0);
    assert!(text.contains("cloud: reached") && !text.contains('\u{1b}'), "{text}");
    Ok(())
}

#[tokio::test]
async fn a_qemu_host_is_examined_without_touching_its_machines() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let libvirtd = QemuLibvirtd::start(dir.path()).await?;
    let vm = libvirtd.host().start_pod_vm("podvm-web-1a2b3c4d").await?;
    let (code, report) =
        Folders::new(&Settings::libvirt(&libvirtd.host().uri().to_string()))?.report().await?;
    assert_eq!(code, 0, "{report:#}");
    assert!(finding(&report, "hypervisor")["text"].as_str().is_some_and(|it| it.starts_with("QEMU ")));
    assert_eq!(finding(&report, "look up volumes")["text"], format!("libvirt found {}", vm.root.key));
    assert_eq!(finding(&report, "write")["outcome"], "works");
    assert_eq!(libvirtd.host().virsh().run(&["domstate", "podvm-web-1a2b3c4d"]).await?.trim(), "running");
    Ok(())
}

#[tokio::test]
async fn a_pool_that_is_not_there_is_a_wrong_setting_and_one_that_is_off_is_the_clouds() -> Result<()> {
    let (_dir, libvirtd) = libvirtd().await?;
    let mut settings = settings(&libvirtd);
    settings.config_map.insert("LIBVIRT_POOL".into(), "nowhere".into());
    let (code, report) = Folders::new(&settings)?.report().await?;
    assert_eq!((code, &report["result"]), (1, &json!("settings")), "{report:#}");
    let pool = finding(&report, "pool");
    assert_eq!((&pool["outcome"], &pool["class"]), (&json!("fails"), &json!("invalid")));
    assert!(pool["text"].as_str().is_some_and(|it| it.contains("nowhere") && it.contains("LIBVIRT_POOL")));
    assert_eq!(finding(&report, "write")["outcome"], "works", "the rest is found out all the same");

    libvirtd.host().virsh().run(&["pool-define-as", "idle", "dir", "--target", "/idle"]).await?;
    settings.config_map.insert("LIBVIRT_POOL".into(), "idle".into());
    let (code, report) = Folders::new(&settings)?.report().await?;
    assert_eq!((code, &report["result"]), (3, &json!("cloud")), "{report:#}");
    let text = finding(&report, "pool")["text"].as_str().unwrap_or_default();
    assert!(text.contains("pool-start"), "{text}");
    Ok(())
}

#[tokio::test]
async fn a_connection_that_may_only_read_is_found_out() -> Result<()> {
    let (_dir, libvirtd) = libvirtd().await?;
    let uri = format!("{}-ro", libvirtd.host().uri());
    let (code, report) = Folders::new(&Settings::libvirt(&uri))?.report().await?;
    assert_eq!((code, &report["result"]), (3, &json!("cloud")), "{report:#}");
    assert_eq!(finding(&report, "look up VMs")["outcome"], "works", "{report:#}");
    let write = finding(&report, "write");
    assert_eq!(write["class"], "unauthorized", "{report:#}");
    assert!(write["text"].as_str().is_some_and(|it| it.contains("libvirt-sock-ro)")), "{write:#}");
    Ok(())
}

#[tokio::test]
async fn a_cloud_that_is_gone_or_hangs_is_reported_in_time() -> Result<()> {
    let (_dir, mut libvirtd) = libvirtd().await?;
    let folders = Folders::new(&settings(&libvirtd))?;
    libvirtd.pause()?;
    let start = Instant::now();
    let answer = folders.report().await;
    libvirtd.resume()?;
    let (code, report) = answer?;
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    assert_eq!((code, &report["providers"][0]["cloud"]["state"]), (3, &json!("unreached")), "{report:#}");

    libvirtd.stop().await?;
    let (code, text) = folders.text().await?;
    assert_eq!(code, 3);
    assert!(text.contains("cloud: not reached") && text.contains("start libvirtd"), "{text}");
    Ok(())
}

#[tokio::test]
async fn a_uri_that_cannot_be_used_is_explained_without_its_secrets() -> Result<()> {
    for (uri, says) in [
        (format!("qemu+ssh://root:{HUSH}@127.0.0.1/system"), "holds no password"),
        (format!("qemu+ssh://root@127.0.0.1/system?password={HUSH}"), "unknown parameter \"password\""),
        ("qemu+ssh://root@127.0.0.1:ssh/system".to_owned(), "number from 1 to 65535"),
        ("qemu+tls://127.0.0.1/system?tls_priority=NORMAL".to_owned(), "left out"),
        ("qemu+tls://127.0.0.1/system?pkipath=pki".to_owned(), "an absolute path"),
        ("127.0.0.1".to_owned(), "looks like qemu:///system"),
    ] {
        let folders = Folders::new(&Settings::libvirt(&uri))?;
        let (code, report) = folders.report().await?;
        let setting = setting(&report, "LIBVIRT_URI");
        assert_eq!((code, &setting["verdict"]), (1, &json!("malformed")), "{report:#}");
        assert!(setting["remarks"][0]["text"].as_str().is_some_and(|it| it.contains(says)), "{setting:#}");
        assert_eq!(report["providers"][0]["cloud"], json!({"state": "not_tried"}));
        assert_eq!(folders.text().await?.0, 1);
    }
    Ok(())
}

#[tokio::test]
async fn every_problem_is_reported_at_once_without_secrets() -> Result<()> {
    let pairs = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    };
    let folders = Folders::new(&Settings {
        config_map: pairs(&[("CLOUD_PROVIDER", "libvirt"), ("LIBVIRT_URI", "a"), ("LIBVIRT_POOOL", HUSH)]),
        secret: pairs(&[("LIBVIRT_URI", HUSH), ("AWS_SECRET_ACCESS_KEY", HUSH), ("LIBVIRT_POOL", HUSH)]),
    })?;
    let (code, text) = folders.text().await?;
    assert_eq!(code, 1);
    for says in ["a libvirt URI looks like", "different values for LIBVIRT_URI", "did you mean LIBVIRT_POOL?"]
    {
        assert!(text.contains(says), "{says}: {text}");
    }

    fs::write(folders.settings().join("..1/LIBVIRT_NET"), b"\xff")?;
    fs::write(folders.settings().join("..1/LIBVIRT_CPU"), vec![b'1'; 2 << 20])?;
    fs::remove_dir_all(folders.credentials())?;
    let (code, report) = folders.report().await?;
    assert_eq!(code, 1);
    let problems = report["providers"][0]["problems"].to_string();
    for says in ["LIBVIRT_CPU the folder exceeds", "LIBVIRT_NET is not UTF-8", "--credentials-dir"] {
        assert!(problems.contains(says), "{says}: {problems}");
    }
    fs::remove_dir_all(folders.settings())?;
    fs::create_dir(folders.settings())?;
    let (code, text) = folders.text().await?;
    assert_eq!(code, 1);
    assert!(text.starts_with("no provider\n") && text.contains("--credentials-dir"), "{text}");
    Ok(())
}

#[tokio::test]
async fn values_of_the_secret_are_used_and_never_shown() -> Result<()> {
    let (_dir, mut libvirtd) = libvirtd().await?;
    let dir = tempfile::tempdir()?;
    let socket = dir.path().join(HUSH);
    let uri = libvirtd.host().uri();
    std::os::unix::fs::symlink(uri.socket().context("it is a unix socket")?, &socket)?;
    let uri = format!("test+unix:///default?socket={}", socket.display());
    let secret = [("LIBVIRT_URI", uri.as_str()), ("LIBVIRT_POOL", HUSH)];
    let folders = Folders::new(&Settings {
        config_map: [("CLOUD_PROVIDER".to_owned(), "libvirt".to_owned())].into(),
        secret: secret.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
    })?;
    // `check` must not print any value of the Secret.
    let (code, report) = folders.report().await?;
    assert_eq!(code, 1, "{report:#}");
    let text = finding(&report, "pool")["text"].as_str().unwrap_or_default();
    assert!(text.contains("the pool \"(LIBVIRT_POOL)\" (LIBVIRT_POOL)"), "{text}");
    libvirtd.stop().await?;
    let (code, report) = folders.report().await?;
    let error = report["providers"][0]["cloud"]["error"].as_str().unwrap_or_default();
    assert_eq!(code, 3, "{report:#}");
    assert!(error.contains("libvirt's socket (LIBVIRT_URI)"), "{error}");
    let (code, text) = folders.text().await?;
    assert!(code == 3 && text.contains("(LIBVIRT_URI)"), "{text}");
    Ok(())
}

#[tokio::test]
async fn arguments_that_cannot_work_have_a_code_of_their_own() -> Result<()> {
    let output = Command::new(PROGRAM).args(["check", "-o", "xml"]).output().await?;
    assert_eq!(output.status.code(), Some(2));
    let help = Command::new(PROGRAM).args(["check", "--help"]).output().await?;
    assert!(String::from_utf8(help.stdout)?.contains("Exit codes:"));
    Ok(())
}

#[tokio::test]
async fn a_reader_that_leaves_early_is_no_failure_and_a_full_disk_is() -> Result<()> {
    let folders = Folders::new(&Settings::libvirt("a"))?;
    let (reader, writer) = std::io::pipe()?;
    drop(reader);
    let output = folders.check_into(writer, &[]).await?;
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(1), &b""[..]));
    let full = || fs::File::options().write(true).open(Path::new("/dev/full"));
    for arguments in [&[][..], &["-o", "json"]] {
        let output = folders.check_into(full()?, arguments).await?;
        assert_eq!(output.status.code(), Some(4), "{arguments:?}");
        assert!(String::from_utf8(output.stderr)?.contains("writing the report failed"));
    }
    Ok(())
}
