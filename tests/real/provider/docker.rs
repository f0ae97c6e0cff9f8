//! Docker: answers that never count as absence, and a deletion by the operator.

use std::path::Path;

use anyhow::{Result, ensure};
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;
use peerpod_operator::provider::{
    Claim, Error, ErrorClass, InstanceId, Stage, cloud::RecordedPlace, docker::CLOUD,
};
use peers::{
    Does, HttpRelay,
    docker::{Container, Podman},
};
use tempfile::TempDir;
use testbed::{
    Settings, vm_name,
    wait::{self, DEADLINE},
};

use super::{
    check::{check, outcomes},
    is_doubt, own,
};
use crate::support::{alone_beside, run};

struct Stand {
    podman: Podman,
    relay: HttpRelay,
    /// Last: podman ends before its folder is removed.
    dir: TempDir,
}

impl Stand {
    async fn start() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let podman = Podman::start(dir.path()).await?;
        let relay = HttpRelay::start(podman.address()).await?;
        Ok(Self { podman, relay, dir })
    }

    fn settings(&self) -> Settings {
        Settings::docker(self.relay.address())
    }

    async fn describe(&self, id: &str) -> Result<Result<Stage, Error>> {
        let described =
            self.settings().open()?.describe(&InstanceId::of(&CLOUD, id)?, &Claim::default()).await;
        Ok(described.map(|vm| vm.stage))
    }

    fn methods(&self) -> Vec<String> {
        self.relay.seen().into_iter().map(|seen| seen.method).collect()
    }
}

fn running(name: &str) -> Container<'_> {
    Container { name, running: true, volume: None, cluster_uid: None }
}

#[test]
fn a_deletion_takes_three_requests() -> Result<()> {
    run(async {
        let docker = Stand::start().await?;
        let name = vm_name("web");
        let id = docker.podman.make(&running(&name)).await?;
        let volumes = docker.podman.volumes_of(&name)?;
        ensure!(volumes.len() == 1, "it has an anonymous volume: {volumes:?}");
        let provider = docker.settings().open()?;
        provider.delete(&own(&*provider, &CLOUD, &id, "web").await?).await?;
        let gone = provider.describe(&InstanceId::of(&CLOUD, &id)?, &Claim::default()).await;
        ensure!(gone.is_err_and(|error| error.class == ErrorClass::NotFound));
        assert_eq!(docker.methods(), ["GET", "DELETE", "GET"]);
        ensure!(!docker.podman.has_container(&name)? && !docker.podman.has_volume(&volumes[0])?);
        Ok(())
    })
}

#[test]
fn a_container_says_when_it_was_made_and_of_which_cluster_it_is() -> Result<()> {
    run(async {
        let docker = Stand::start().await?;
        let name = vm_name("web");
        let of_another = Container { cluster_uid: Some("another"), ..running(&name) };
        let id = docker.podman.make(&of_another).await?;
        let provider = docker.settings().open()?;
        let vm = provider.describe(&InstanceId::of(&CLOUD, &id)?, &Claim::default()).await?;
        ensure!(vm.cluster_uid.as_deref() == Some("another"), "{vm:?}");
        let age = vm.created.map(|created| Timestamp::now().duration_since(created).abs());
        ensure!(age.is_some_and(|age| age < SignedDuration::from_mins(5)), "{vm:?}");
        Ok(())
    })
}

#[test]
fn ambiguous_answers_do_not_count_as_absence() -> Result<()> {
    run(async {
        let docker = Stand::start().await?;
        let name = vm_name("web");
        let id = docker.podman.make(&Container { running: false, ..running(&name) }).await?;
        let other = "f".repeat(64);
        let absent = |id: &str| format!(r#"{{"message":"No such container: {id}"}}"#);
        for (what, status, body, class) in [
            ("another container", 404, absent(&other), ErrorClass::Invalid),
            ("a page", 404, r#"{"message":"page not found"}"#.to_owned(), ErrorClass::Invalid),
            ("an image", 404, format!(r#"{{"message":"No such image: {id}"}}"#), ErrorClass::Invalid),
            ("a proxy", 404, "<html>not found</html>".to_owned(), ErrorClass::Invalid),
            ("another status", 500, absent(&id), ErrorClass::Transient),
            ("no container", 200, "{}".to_owned(), ErrorClass::Transient),
            ("no JSON", 200, "<html>".to_owned(), ErrorClass::Transient),
            (
                "a version",
                400,
                r#"{"message":"client version 1.44 is too new"}"#.to_owned(),
                ErrorClass::Invalid,
            ),
            ("a plugin", 403, r#"{"message":"denied"}"#.to_owned(), ErrorClass::Unauthorized),
        ] {
            docker.relay.rule(|_| true, Does::Answer { status, headers: Vec::new(), body });
            is_doubt(what, docker.describe(&id).await?, class)?;
            docker.relay.forget_rules();
        }
        for part in [&name, &id[..12]] {
            let described = docker.describe(part).await?;
            ensure!(described.is_err_and(|error| error.class == ErrorClass::Refused), "{part} is described");
        }
        docker.relay.rule(|_| true, Does::CutOff);
        ensure!(docker.describe(&id).await?.is_err_and(|error| error.class == ErrorClass::Transient));
        docker.relay.forget_rules();

        // First Docker's own answer, then that of another daemon, which has none of the containers.
        let here = format!("tcp://{}", docker.relay.address());
        let info = Does::Answer {
            status: 200,
            headers: vec![("server", "Docker/27.5.1 (linux)".to_owned())],
            body: r#"{"ID":"d-1"}"#.to_owned(),
        };
        docker.relay.rule(|seen| seen.path.ends_with("/info"), info);
        docker.relay.rule(
            |seen| seen.path.contains("/containers/"),
            Does::Answer { status: 404, headers: Vec::new(), body: absent(&id) },
        );
        for (daemon, class) in [("d-1", ErrorClass::NotFound), ("d-2", ErrorClass::Transient)] {
            let recorded = RecordedPlace::former(&here, Some(daemon));
            let provider = docker.settings().open_at(Some(recorded))?;
            let described = provider.describe(&InstanceId::of(&CLOUD, &id)?, &Claim::default()).await;
            ensure!(described.as_ref().is_err_and(|error| error.class == class), "{daemon}: {described:?}");
        }
        ensure!(docker.podman.has_container(&name)?, "the container is gone");
        Ok(())
    })
}

#[test]
fn check_lists_containers_and_removes_none() -> Result<()> {
    run(async {
        let docker = Stand::start().await?;
        let name = vm_name("web");
        docker.podman.make(&Container { running: false, ..running(&name) }).await?;
        let (output, cloud) = check(docker.dir.path(), &docker.settings(), &[]).await?;
        ensure!(output.status.success() && outcomes(&cloud) == ["works"; 2], "{cloud}");
        ensure!(
            cloud.to_string().contains("1 container named") && docker.podman.has_container(&name)?,
            "{cloud}"
        );
        Ok(())
    })
}

#[test]
fn a_container_is_deleted_with_its_pod_and_a_users_volume_stays() -> Result<()> {
    let start = async |dir: &Path, _: &_| {
        let podman = Podman::start(&dir.join("podman")).await?;
        let settings = Settings::docker(podman.address());
        Ok((podman, settings))
    };
    alone_beside(start, async |alone, podman| {
        let scene = alone.scene();
        let (owner, name) = (scene.pods.run("web").await?, vm_name("web"));
        let id = podman.make(&Container { volume: Some("mine"), ..running(&name) }).await?;
        let peerpod = scene.caa.record(&owner, "docker", &id).await?.name_any();
        scene.pods.delete("web").await?;
        wait::gone(&scene.peerpods, &peerpod, DEADLINE).await?;
        ensure!(!podman.has_container(&name)? && podman.has_volume("mine")?);
        Ok(())
    })
}
