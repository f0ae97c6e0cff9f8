//! Amazon EC2, simulated by moto, which Amazon's own SDKs are tested with.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result};
use cluster::process::{Lifetime, Process};
use serde::Deserialize;
use serde_json::json;

use crate::{control::Control, python};

/// How long moto may take until it listens.
const READY_DEADLINE: Duration = Duration::from_secs(60);

/// The region of all its instances.
pub const REGION: &str = "eu-west-1";

/// A cloud with one account. It ends when this is dropped. It checks signatures and rights.
#[derive(Debug)]
pub struct Moto {
    api: SocketAddr,
    control: Control,
    _process: Process,
}

/// What is left of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct Left {
    /// Whether the instance exists and is not being terminated.
    pub vm: bool,
    /// The number of elastic addresses and interfaces with its identifier.
    pub belongings: u64,
    /// Whether the volume with a user's data exists.
    pub user_data: bool,
}

impl Moto {
    /// Starts one with its log in `dir`, a folder of its own. Installs what is missing first.
    pub async fn start(dir: &Path) -> Result<Self> {
        let python = environment().await?;
        fs::create_dir_all(dir).with_context(|| format!("creating {}", dir.display()))?;
        let mut command = Command::new(python);
        command.arg("-u").arg(source().join("main.py")).arg(dir);
        // Amazon's list of images takes a second of processor time, and no instance needs it.
        command.env("MOTO_EC2_LOAD_DEFAULT_AMIS", "false");
        let process = Process::start("moto", &command, dir, Lifetime::Owned)?;
        let ports = process.wait_until("moto listens", READY_DEADLINE, || async {
            let ports = fs::read_to_string(dir.join("ports"))?;
            let (api, control) = ports.trim().split_once(' ').context("two ports are expected")?;
            Ok((api.parse::<u16>()?, control.parse::<u16>()?))
        });
        let (api, control) = ports.await?;
        let local = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let control = Control::new(format!("http://{}", local(control)));
        Ok(Self { api: local(api), control, _process: process })
    }

    /// The address of its API.
    pub fn api(&self) -> SocketAddr {
        self.api
    }

    /// Makes an instance of this name. Returns its identifier. `kind` is `running`, `stopped`, `remains` (each with an elastic address
    /// and an interface of its own), `bare` or `data` (with a user's volume).
    pub async fn make(&self, name: &str, kind: &str) -> Result<String> {
        self.control.ask("make", &json!({"name": name, "kind": kind})).await
    }

    /// What is left of an instance.
    pub async fn left(&self, instance: &str) -> Result<Left> {
        self.control.ask("left", &json!({"instance": instance})).await
    }

    /// Terminates an instance, and deletes what has its identifier.
    pub async fn remove(&self, instance: &str) -> Result<()> {
        self.control.tell("remove", &json!({"instance": instance})).await
    }

    /// Gives the elastic address with an instance's identifier to another instance, or to none.
    pub async fn lend(&self, instance: &str, to: Option<&str>) -> Result<()> {
        self.control.tell("lend", &json!({"instance": instance, "to": to})).await
    }

    /// Gives an instance a further tag, or the tag another value.
    pub async fn tag(&self, instance: &str, key: &str, value: &str) -> Result<()> {
        self.control.tell("tag", &json!({"instance": instance, "key": key, "value": value})).await
    }

    /// Makes a user with only this policy's rights. Returns identifier and secret of the access key.
    pub async fn user(&self, policy: &str) -> Result<(String, String)> {
        self.control.ask("user", &json!({"policy": policy})).await
    }

    /// Makes a role with only this policy's rights, which the bearer of any token may assume. Returns its ARN.
    pub async fn role(&self, policy: &str) -> Result<String> {
        self.control.ask("role", &json!({"policy": policy})).await
    }

    /// Whether moto checks signatures and rights. While it does, it refuses unsigned requests, such as those for a role.
    pub async fn rights(&self, count: bool) -> Result<()> {
        self.control.tell("rights", &json!({"count": count})).await
    }
}

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("aws")
}

/// The `python` with moto. Installs both first if they are missing.
pub(crate) async fn environment() -> Result<PathBuf> {
    python::environment(&source().join("requirements.txt")).await
}
