//! Docker by TLS: a certificate on both sides, of an authority that the machine does not trust.

use std::{fs, path::Path};

use anyhow::{Result, bail, ensure};
use kube::ResourceExt as _;
use peerpod_operator::provider::{Claim, Error, ErrorClass, InstanceId, Stage, docker::CLOUD};
use peers::{
    docker::{Container, Podman},
    tls::{Authority, Clients, TlsRelay},
};
use tempfile::TempDir;
use testbed::{
    Settings, vm_name,
    wait::{self, DEADLINE},
};

use super::check::{check, findings, outcomes};
use crate::support::{alone_beside, run};

/// podman behind TLS.
struct Daemon {
    podman: Podman,
    relay: TlsRelay,
    authority: Authority,
}

impl Daemon {
    async fn start(dir: &Path) -> Result<Self> {
        let (podman, authority) = (Podman::start(&dir.join("podman")).await?, Authority::new()?);
        let relay = TlsRelay::start(podman.address(), &authority, Clients::Known).await?;
        Ok(Self { podman, relay, authority })
    }

    /// Settings with the certificates in this folder.
    fn settings(&self, certificates: &Path) -> Settings {
        let mut settings = Settings::docker(self.relay.address());
        let certificates = certificates.display().to_string();
        let tls = [("DOCKER_TLS_VERIFY", "true".to_owned()), ("DOCKER_CERT_PATH", certificates)];
        settings.config_map.extend(tls.map(|(key, value)| (key.to_owned(), value)));
        settings
    }
}

async fn describe(settings: &Settings, id: &str) -> Result<Result<Stage, Error>> {
    let provider = match settings.open() {
        Err(error) => return Ok(Err(error)),
        Ok(provider) => provider,
    };
    let described = provider.describe(&InstanceId::of(&CLOUD, id)?, &Claim::default()).await;
    Ok(described.map(|vm| vm.stage))
}

fn running(name: &str) -> Container<'_> {
    Container { name, running: true, volume: None, cluster_uid: None }
}

#[test]
fn unfit_certificates_are_reported_and_never_count_as_absence() -> Result<()> {
    run(async {
        let dir = TempDir::new()?;
        let daemon = Daemon::start(dir.path()).await?;
        let id = daemon.podman.make(&running(&vm_name("web"))).await?;
        let absent = "f".repeat(64);
        let folder = |name: &str| dir.path().join(name);
        daemon.authority.client(&folder("good"))?;
        let good = daemon.settings(&folder("good"));
        assert_eq!(describe(&good, &id).await?, Ok(Stage::Present));
        let gone = describe(&good, &absent).await?;
        ensure!(gone.as_ref().is_err_and(|error| error.class == ErrorClass::NotFound), "{gone:?}");

        let stranger = Authority::new()?;
        // The operator's files name another authority than the one that signed the daemon's certificate.
        stranger.client(&folder("stranger"))?;
        // The daemon trusts another authority than the one that signed the operator's certificate.
        stranger.client(&folder("unknown"))?;
        fs::copy(folder("good").join("ca.pem"), folder("unknown").join("ca.pem"))?;
        daemon.authority.client(&folder("no-certificate"))?;
        fs::remove_file(folder("no-certificate").join("cert.pem"))?;
        daemon.authority.client(&folder("no-key"))?;
        fs::write(folder("no-key").join("key.pem"), "nonsense")?;
        daemon.authority.client(&folder("empty"))?;
        fs::write(folder("empty").join("cert.pem"), "")?;
        daemon.authority.client(&folder("mixed"))?;
        fs::copy(folder("good").join("key.pem"), folder("mixed").join("key.pem"))?;
        for (name, class, says) in [
            ("stranger", ErrorClass::Invalid, "ca.pem in DOCKER_CERT_PATH"),
            ("unknown", ErrorClass::Unauthorized, "cert.pem in DOCKER_CERT_PATH"),
            ("no-certificate", ErrorClass::Invalid, "reading cert.pem in DOCKER_CERT_PATH failed"),
            (
                "no-key",
                ErrorClass::Invalid,
                "key.pem in DOCKER_CERT_PATH has no private key without a passphrase",
            ),
            ("empty", ErrorClass::Invalid, "cert.pem in DOCKER_CERT_PATH has no certificate in PEM"),
            ("mixed", ErrorClass::Invalid, "of another key than the one beside it"),
        ] {
            let settings = daemon.settings(&folder(name));
            for id in [&id, &absent] {
                // A server may close the connection before it reads the request. Then the client does not learn the reason.
                wait::eventually("the certificates are refused", DEADLINE, async || {
                    match describe(&settings, id).await? {
                        Err(error) if error.class == class && error.to_string().contains(says) => Ok(()),
                        Err(error) if error.class == ErrorClass::Transient => bail!("{name}: {error:?}"),
                        described => unreachable!("{name}: {described:?}"),
                    }
                })
                .await?;
            }
        }

        // A client without TLS, and one without a certificate.
        let plain = describe(&Settings::docker(daemon.relay.address()), &absent).await?;
        ensure!(plain.as_ref().is_err_and(|error| error.class == ErrorClass::Transient), "{plain:?}");
        Ok(())
    })
}

#[test]
fn check_reports_certificates_as_the_operator_would() -> Result<()> {
    run(async {
        let dir = TempDir::new()?;
        let daemon = Daemon::start(dir.path()).await?;
        let (good, unknown) = (dir.path().join("good"), dir.path().join("unknown"));
        daemon.authority.client(&good)?;
        Authority::new()?.client(&unknown)?;
        fs::copy(good.join("ca.pem"), unknown.join("ca.pem"))?;
        let (output, report) = check(dir.path(), &daemon.settings(&good), &[]).await?;
        ensure!(output.status.success() && outcomes(&report) == ["works"; 2], "{report}");
        let (output, report) = check(dir.path(), &daemon.settings(&unknown), &[]).await?;
        ensure!(!output.status.success() && outcomes(&report) == ["fails"; 2], "{report}");
        ensure!(findings(&report)[0].1.contains("cert.pem in DOCKER_CERT_PATH"), "{report}");
        Ok(())
    })
}

#[test]
fn a_container_behind_tls_is_deleted_once_the_certificates_fit() -> Result<()> {
    let start = async |dir: &Path, _: &_| {
        let daemon = Daemon::start(dir).await?;
        let (good, wrong) = (dir.join("good"), dir.join("wrong"));
        daemon.authority.client(&good)?;
        Authority::new()?.client(&wrong)?;
        let (good, wrong) = (daemon.settings(&good), daemon.settings(&wrong));
        Ok(((daemon, good.clone(), wrong), good))
    };
    alone_beside(start, async |alone, (daemon, good, wrong)| {
        let (owner, name) = (alone.scene().pods.run("web").await?, vm_name("web"));
        let id = daemon.podman.make(&running(&name)).await?;
        let peerpod = alone.scene().caa.record(&owner, "docker", &id).await?.name_any();
        alone.operator.mount(wrong)?;
        alone.operator.reloaded(2, 0).await?;
        alone.scene().pods.delete("web").await?;
        let held = alone.scene().held(&peerpod, "InvalidSettings").await?;
        ensure!(held.message.contains("ca.pem in DOCKER_CERT_PATH"), "{}", held.message);
        ensure!(daemon.podman.has_container(&name)?, "the container is gone");

        alone.operator.mount(good)?;
        wait::gone(&alone.scene().peerpods, &peerpod, DEADLINE).await?;
        ensure!(!daemon.podman.has_container(&name)?, "the container is there");
        Ok(())
    })
}
