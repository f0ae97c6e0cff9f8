//! Docker's API by Debian's podman, with images and containers in a folder of its own.

use std::{
    fs,
    net::SocketAddr,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use cluster::{
    address, packages,
    process::{Lifetime, Process},
};
use http_body_util::{BodyExt as _, Full};
use hyper::{Method, Request, body::Bytes, header};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use image::Files;
use serde_json::{Value, json};

/// podman, and the runtime of its containers.
const PACKAGES: [&str; 2] = ["podman", "runc"];

/// The program of the containers.
const SLEEP: &str = "/bin/sleep";

/// The usual port.
const PORT: u16 = 2375;
const IMAGE: &str = "peer";
const START_DEADLINE: Duration = Duration::from_secs(60);

/// How long the monitors of removed containers may take to end.
const CLEAN_UP_PATIENCE: Duration = Duration::from_secs(10);

/// Options that keep podman away from the machine's own state and configuration.
const OPTIONS: [&str; 8] = [
    "--storage-driver",
    "vfs",
    "--cgroup-manager",
    "cgroupfs",
    "--events-backend",
    "none",
    "--runtime",
    "runc",
];

/// A container to be made.
#[derive(Clone, Copy, Debug)]
pub struct Container<'a> {
    /// Its name.
    pub name: &'a str,
    /// Whether it runs.
    pub running: bool,
    /// The name of a user's volume that is mounted in it.
    pub volume: Option<&'a str>,
    /// The UID of the cluster that its label names.
    pub cluster_uid: Option<&'a str>,
}

/// A podman.
#[derive(Debug)]
pub struct Podman {
    dir: PathBuf,
    address: SocketAddr,
    client: Client<HttpConnector, Full<Bytes>>,
    process: Process,
}

impl Podman {
    /// Installs podman.
    pub(crate) fn install() -> Result<()> {
        ensure!(rustix::process::geteuid().is_root(), "podman needs root here: run this command as root");
        packages::ensure(&PACKAGES)
    }

    /// Starts one with its state and its log in `dir`, a folder of its own. Installs missing packages first.
    pub async fn start(dir: &Path) -> Result<Self> {
        Self::install()?;
        fs::create_dir_all(dir).with_context(|| format!("creating {}", dir.display()))?;
        let image = dir.join("image.tar");
        let mut files = Files::new();
        files.install(Path::new(SLEEP), SLEEP)?;
        fs::write(&image, files.tar()?).with_context(|| format!("writing {}", image.display()))?;
        run(podman(dir).args(["import", "--quiet"]).arg(&image).arg(IMAGE))?;
        let [address] = address::unused(PORT)?;
        let mut command = podman(dir);
        command.args(["system", "service", "--time=0"]).arg(format!("tcp://{address}"));
        let process = Process::start("podman", &command, dir, Lifetime::Owned)?;
        let client = Client::builder(TokioExecutor::new()).build_http();
        let podman = Self { dir: dir.to_owned(), address, client, process };
        let answers = || async { podman.ask(Method::GET, "_ping", &Value::Null).await };
        podman.process.wait_until("podman answers", START_DEADLINE, answers).await?;
        Ok(podman)
    }

    /// Its address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Makes a container. Returns its identifier.
    pub async fn make(&self, container: &Container<'_>) -> Result<String> {
        let binds: Vec<_> = container.volume.iter().map(|volume| format!("{volume}:/data")).collect();
        // podman's default limits may be more than a test machine allows.
        let limits = ["nofile", "nproc"].map(|name| json!({ "Name": name, "Soft": 1024, "Hard": 1024 }));
        let mut labels = json!({ "cluster": "test" });
        container.cluster_uid.iter().for_each(|uid| labels["caa-cluster-uid"] = json!(uid));
        let wanted = json!({
            "Image": IMAGE,
            // A container that a test leaves behind ends by itself.
            "Cmd": [SLEEP, "600"],
            "Labels": labels,
            "Volumes": { "/anonymous": {} },
            "HostConfig": { "NetworkMode": "none", "Ulimits": limits, "Binds": binds },
        });
        let made =
            self.ask(Method::POST, &format!("containers/create?name={}", container.name), &wanted).await?;
        let id = made["Id"].as_str().context("podman gave no identifier")?.to_owned();
        if container.running {
            self.ask(Method::POST, &format!("containers/{id}/start"), &Value::Null).await?;
        }
        Ok(id)
    }

    /// Whether there is a container of this name.
    pub fn has_container(&self, name: &str) -> Result<bool> {
        exists(podman(&self.dir).args(["container", "exists", name]))
    }

    /// Whether there is a volume of this name.
    pub fn has_volume(&self, name: &str) -> Result<bool> {
        exists(podman(&self.dir).args(["volume", "exists", name]))
    }

    /// The names of the volumes that are mounted in the container of this name.
    pub fn volumes_of(&self, name: &str) -> Result<Vec<String>> {
        const NAMES: &str = "{{range .Mounts}}{{.Name}} {{end}}";
        let names = run(podman(&self.dir).args(["container", "inspect", "--format", NAMES, name]))?;
        Ok(names.split_whitespace().map(str::to_owned).collect())
    }

    /// Removes a container at once.
    pub fn remove(&self, name: &str) -> Result<()> {
        run(podman(&self.dir).args(["rm", "--force", "--volumes", "--time=0", name])).map(drop)
    }

    async fn ask(&self, method: Method, path: &str, with: &Value) -> Result<Value> {
        let request = Request::builder().method(method).uri(format!("http://{}/v1.41/{path}", self.address));
        let request =
            request.header(header::CONTENT_TYPE, "application/json").body(with.to_string().into())?;
        let answer = self.client.request(request).await?;
        let status = answer.status();
        let body = answer.into_body().collect().await?.to_bytes();
        ensure!(status.is_success(), "{path}: {status}: {}", String::from_utf8_lossy(&body));
        Ok(serde_json::from_slice(&body).unwrap_or_default())
    }
}

impl Drop for Podman {
    /// A container left behind would keep a mount in the folder, so that the folder could not be removed. Errors are ignored, because
    /// nothing worse can result.
    fn drop(&mut self) {
        drop(podman(&self.dir).args(["rm", "--all", "--force", "--volumes", "--time=0"]).output());
        // Each container's monitor still runs a podman, which would make the folder again while or after it is removed.
        let until = Instant::now() + CLEAN_UP_PATIENCE;
        while cleans_up(&self.dir) && Instant::now() < until {
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Whether the monitor of a container in this folder is there, or the podman that it runs at its end.
fn cleans_up(dir: &Path) -> bool {
    let root = dir.join("root");
    let root = root.as_os_str().as_bytes();
    fs::read_dir("/proc").into_iter().flatten().flatten().any(|process| {
        let line = fs::read(process.path().join("cmdline")).unwrap_or_default();
        // The service has the folder in its command line, too.
        line.split(|byte| *byte == 0).any(|it| it == b"cleanup")
            && line.windows(root.len()).any(|it| it == root)
    })
}

/// podman with its state in this folder.
fn podman(dir: &Path) -> Command {
    let mut command = Command::new("podman");
    for (option, folder) in [("--root", "root"), ("--runroot", "run"), ("--tmpdir", "tmp")] {
        command.arg(option).arg(dir.join(folder));
    }
    command.args(OPTIONS);
    command
}

fn run(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("running {command:?}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?} failed ({}):\n{said}", output.status);
    Ok(String::from_utf8(output.stdout)?)
}

/// Whether a question is answered with yes, which is exit code 0. No is exit code 1.
fn exists(command: &mut Command) -> Result<bool> {
    let status = command.status().with_context(|| format!("running {command:?}"))?;
    ensure!(matches!(status.code(), Some(0 | 1)), "{command:?} failed ({status})");
    Ok(status.success())
}
