//! `cargo xtask image --push`, to Debian's registry.

use std::{
    fs,
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Command, Output},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use cluster::{
    address::unused,
    packages,
    process::{Lifetime, Process},
};
use oci_client::{
    Client, Reference,
    client::{Certificate, CertificateEncoding, ClientConfig},
    secrets::RegistryAuth,
};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use serde_json::json;
use tempfile::TempDir;
use tokio_rustls::rustls::crypto::ring;

const PACKAGE: &str = "docker-registry";
/// The usual port.
const PORT: u16 = 5000;
const DEADLINE: Duration = Duration::from_secs(30);

const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// The user `me` with the password `right`, by bcrypt.
const USERS: &str = "me:$2b$04$LGA10si.esj04k0TB6QJEu3lpVUVZbkB1OiHVcEuo7C7JPVVcU5Em\n";

/// A registry at an address of its own.
struct Registry {
    dir: TempDir,
    address: SocketAddr,
    _process: Process,
}

impl Registry {
    /// With TLS it accepts one user, without TLS every client.
    async fn start(tls: bool) -> Result<Self> {
        packages::ensure(&[PACKAGE])?;
        let (dir, [address]) = (tempfile::tempdir()?, unused(PORT)?);
        let path = |name: &str| dir.path().join(name);
        let mut http = json!({ "addr": address });
        let storage = json!({ "filesystem": { "rootdirectory": path("storage") } });
        let mut configuration = json!({ "version": "0.1", "storage": storage });
        if tls {
            let CertifiedKey { cert, signing_key } = generate_simple_self_signed([address.ip().to_string()])?;
            fs::write(path("cert.pem"), cert.pem())?;
            fs::write(path("key.pem"), signing_key.serialize_pem())?;
            http["tls"] = json!({ "certificate": path("cert.pem"), "key": path("key.pem") });
            fs::write(path("users"), USERS)?;
            configuration["auth"] = json!({ "htpasswd": { "realm": "tests", "path": path("users") } });
        }
        configuration["http"] = http;
        // JSON is YAML.
        fs::write(path("config.yml"), configuration.to_string())?;
        let mut command = Command::new(PACKAGE);
        command.arg("serve").arg(path("config.yml"));
        let process = Process::start(PACKAGE, &command, dir.path(), Lifetime::Owned)?;
        let probe = || async { Ok(TcpStream::connect(address)?) };
        process.wait_until("the registry answers", DEADLINE, probe).await?;
        Ok(Self { dir, address, _process: process })
    }

    fn authority(&self) -> String {
        self.address.to_string()
    }

    fn certificate(&self) -> PathBuf {
        self.dir.path().join("cert.pem")
    }
}

/// A user's configuration: credentials, and trusted authorities.
struct User {
    dir: TempDir,
    trusted: Option<PathBuf>,
}

impl User {
    fn new() -> Result<Self> {
        Ok(Self { dir: tempfile::tempdir()?, trusted: None })
    }

    /// Writes what `docker login` would write.
    fn log_in(&self, registry: &str, password: &str) -> Result<()> {
        let credentials = json!({ "username": "me", "password": password });
        let config = json!({ "auths": { registry: credentials } });
        Ok(fs::write(self.dir.path().join("config.json"), config.to_string())?)
    }

    fn image(&self, arguments: &[&str]) -> Result<Output> {
        let mut xtask = Command::new(env!("CARGO_BIN_EXE_xtask"));
        // A small program, linked like the operators.
        xtask.args(["image", "--example=podset", "--program=/bin/true", "--output"]).arg(self.dir.path());
        xtask.args(arguments).env("DOCKER_CONFIG", self.dir.path());
        xtask.env("SSL_CERT_FILE", self.trusted.as_deref().unwrap_or(Path::new("/dev/null")));
        Ok(xtask.output()?)
    }

    /// Pushes. Returns the image's digest.
    fn pushes(&self, arguments: &[&str]) -> Result<String> {
        let output = self.image(arguments)?;
        let said = String::from_utf8(output.stdout)?;
        ensure!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
        let digest = said.lines().find_map(|line| line.strip_prefix("digest   "));
        Ok(digest.context("a digest is told")?.to_owned())
    }

    /// Fails unless the push fails. Returns the error.
    fn fails(&self, arguments: &[&str]) -> Result<String> {
        let output = self.image(arguments)?;
        ensure!(!output.status.success(), "it succeeded: {}", String::from_utf8_lossy(&output.stdout));
        Ok(String::from_utf8(output.stderr)?)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_pushed_by_tls_with_credentials_can_be_pulled() -> Result<()> {
    let registry = Registry::start(true).await?;
    let authority = registry.authority();
    let mut user = User::new()?;
    let destination = format!("{authority}/team/mine");
    let push = ["--push", &destination];

    let untrusted = user.fails(&push)?;
    ensure!(untrusted.contains(&authority) && untrusted.contains("certificate"), "{untrusted}");
    user.trusted = Some(registry.certificate());
    let anonymous = user.fails(&push)?;
    ensure!(anonymous.contains(&format!("run `docker login {authority}`")), "{anonymous}");
    user.log_in(&authority, "wrong")?;
    let refused = user.fails(&push)?;
    ensure!(refused.contains("refuses the credentials") && !refused.contains("wrong"), "{refused}");

    user.log_in(&authority, "right")?;
    let digest = user.pushes(&push)?;
    // A second push, while the registry already has all blobs.
    ensure!(user.pushes(&push)? == digest);

    let _ = ring::default_provider().install_default();
    let data = fs::read(registry.certificate())?;
    let certificate = Certificate { encoding: CertificateEncoding::Pem, data };
    let config = ClientConfig { extra_root_certificates: vec![certificate], ..ClientConfig::default() };
    let credentials = RegistryAuth::Basic("me".to_owned(), "right".to_owned());
    let reference: Reference = format!("{destination}:{}", env!("CARGO_PKG_VERSION")).parse()?;
    // The client compares every digest with the content that it gets.
    let pulled = Client::try_from(config)?.pull(&reference, &credentials, vec![LAYER]).await?;
    ensure!(pulled.digest.as_deref() == Some(&*digest), "{:?} instead of {digest}", pulled.digest);
    ensure!(pulled.layers.len() == 1, "{} layers", pulled.layers.len());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_without_tls_is_used_only_when_that_is_asked_for() -> Result<()> {
    let (registry, user) = (Registry::start(false).await?, User::new()?);
    let authority = registry.authority();
    let refused = user.fails(&["--push", &authority])?;
    ensure!(refused.contains(&format!("pushing to {authority} failed")), "{refused}");
    let digest = user.pushes(&["--push", &authority, "--plain-http"])?;
    let tag = "storage/docker/registry/v2/repositories/podset-operator/_manifests/tags";
    let link = format!("{tag}/{}/current/link", env!("CARGO_PKG_VERSION"));
    let stored = fs::read_to_string(registry.dir.path().join(link))?;
    ensure!(stored == digest, "{stored} is stored instead of {digest}");
    Ok(())
}

#[test]
fn an_unreachable_registry_is_reported() -> Result<()> {
    let (user, [address]) = (User::new()?, unused(PORT)?);
    let authority = address.to_string();
    let said = user.fails(&["--push", &authority, "--plain-http"])?;
    ensure!(said.contains(&authority) && said.contains("Connection refused"), "{said}");
    let said = user.fails(&["--push", "team/mine"])?;
    ensure!(said.contains("team is no registry"), "{said}");
    Ok(())
}
