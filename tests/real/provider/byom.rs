//! Machines that exist already. They restart and return to their pool, and no other Pod's allocation is lost.

use std::{
    cell::OnceCell,
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use futures::future::{join, try_join_all};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{core::v1::ConfigMap, node::v1::RuntimeClass};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, PostParams},
};
use peerpod_operator::{
    NAMESPACE, install,
    provider::{Claim, ErrorClass, InstanceId, Provider, byom::CLOUD, cloud::Recorded, ownership},
};
use peers::sshd::{self, Sshd};
use serde_json::{Value, json};
use testbed::{
    BringYourOwn, Operator, OperatorOptions, Settings, Testbed,
    byom_pool::{POOL, machine},
    peerpod_object,
    wait::{self, DEADLINE},
};

use super::check::{check, findings, outcomes};
use crate::support::{PROGRAM, alone_with, without_operator};

/// How long the operator must have seen a machine as available until it releases the PeerPod.
const LOOK_AFTER: Duration = Duration::from_secs(30);

/// How long the release of a PeerPod may take after its machine has returned.
const RELEASED: Duration = DEADLINE.saturating_add(LOOK_AFTER);

/// The answer to the first look at a machine that is available.
const AVAILABLE: ErrorClass = ErrorClass::Unsettled { look_after: LOOK_AFTER };

/// A machine, and a pool on the cluster.
struct Stand {
    sshd: Sshd,
    /// The folder that the machine serves by SFTP.
    root: PathBuf,
    pool: BringYourOwn,
}

impl Stand {
    /// Starts one machine, and adds to the pool so many addresses where no machine listens.
    async fn start(testbed: &Testbed, dir: &Path, further: u8) -> Result<Self> {
        let root = dir.join("machine");
        fs::create_dir_all(root.join("cidata"))?;
        let options = sshd::Options { sftp: Some(root.clone()), port: Some(22), ..sshd::Options::default() };
        let sshd = Sshd::start(&dir.join("sshd"), &options).await?;
        let objects: Api<ConfigMap> = Api::namespaced(testbed.client(), NAMESPACE);
        if objects.get_opt(POOL).await?.is_some() {
            objects.delete(POOL, &DeleteParams::default()).await?;
        }
        let pool = BringYourOwn::of(testbed.client(), NAMESPACE);
        let machines = (1..=further).map(machine).chain([sshd.address().to_string()]);
        pool.create(&machines.collect::<Vec<_>>()).await?;
        let rights = install::cloud_rights(&CLOUD, &install::Options::default())?;
        testbed.apply("rights", &rights).await?;
        Ok(Self { sshd, root, pool })
    }

    fn address(&self) -> String {
        self.sshd.address().to_string()
    }

    fn settings(&self) -> Settings {
        Settings::byom(&self.sshd.key("ed25519"))
    }

    /// Gives the machine to a Pod.
    async fn give(&self, pod: &str) -> Result<()> {
        self.give_since(pod, Timestamp::now()).await
    }

    /// Gives the machine to a Pod as if at that time.
    async fn give_since(&self, pod: &str, since: Timestamp) -> Result<()> {
        self.pool.give(&format!("{pod}-0123456789abcdef"), &self.address(), pod, since).await
    }

    /// Waits until no Pod has a machine. Fails unless this one was told to restart.
    async fn returned(&self, deadline: Duration) -> Result<()> {
        let address = self.address();
        wait::eventually("the machine is back in the pool", deadline, async || {
            let content = self.pool.content().await?;
            ensure!(content.allocations == 0 && content.available.contains(&address), "{content:?}");
            Ok(())
        })
        .await?;
        ensure!(self.told()?.as_deref() == Some("reboot"), "the machine was not told to restart");
        Ok(())
    }

    /// The message that the machine got since the last call.
    fn told(&self) -> Result<Option<String>> {
        let path = self.root.join("cidata/reboot");
        if !path.exists() {
            return Ok(None);
        }
        let text = fs::read_to_string(&path)?;
        fs::remove_file(path)?;
        Ok(Some(text))
    }
}

/// The claim of a PeerPod of this Pod that was made just now.
fn claim(pod: &str) -> Claim {
    let now = Timestamp::now();
    Claim { pod: Some(pod.to_owned()), recorded: now, created: now, deleted: Some(now), contested: false }
}

/// Deletes as the operator does, until the pool no longer gives the machine to the Pod.
async fn reap(provider: &dyn Provider, address: &str, pod: &str) -> Result<()> {
    let (id, claim) = (InstanceId::of(&CLOUD, address)?, claim(pod));
    for _ in 0..100 {
        match provider.describe(&id, &claim).await {
            Err(gone) if [AVAILABLE, ErrorClass::NotFound].contains(&gone.class) => return Ok(()),
            Err(error) => bail!("{}", error.message.for_log()),
            Ok(vm) => {
                let own = ownership::verify(vm, pod, CLOUD.name_limit)?;
                match provider.delete(&own).await {
                    Err(error) if error.class != ErrorClass::Transient => {
                        bail!("{}", error.message.for_log())
                    }
                    _ => {}
                }
            }
        }
    }
    bail!("{pod} has {address} still")
}

/// Starts a pool in `stand`, and an operator for it.
async fn with_operator(testbed: &Testbed, dir: &Path, stand: &OnceCell<Stand>) -> Result<Operator> {
    let started = Stand::start(testbed, dir, 1).await?;
    let settings = started.settings();
    let _ = stand.set(started);
    Operator::start(testbed, &OperatorOptions::new(PROGRAM, dir.join("operator"), settings)).await
}

#[test]
fn a_machine_restarts_and_returns_to_the_pool_with_its_pod_and_is_no_earlier_pods() -> Result<()> {
    let stand = OnceCell::new();
    let start = async |testbed: &Testbed, dir: &Path, _: &_| with_operator(testbed, dir, &stand).await;
    alone_with(start, async |alone| {
        let (scene, stand) = (alone.scene(), stand.get().context("it was started")?);
        let before = scene.testbed.audit()?.of_operator()?.len();
        let address = stand.address();
        let (web, since) = (scene.pods.run("web").await?, Timestamp::now());
        stand.give_since("web", since).await?;
        let recorded = scene.caa.record(&web, "byom", &address).await?.name_any();
        scene.pods.delete("web").await?;
        stand.returned(DEADLINE).await?;
        // cloud-api-adaptor writes the pool as it read it before.
        stand.give_since("web", since).await?;
        stand.returned(RELEASED).await?;
        wait::gone(&scene.peerpods, &recorded, RELEASED).await?;

        // The PeerPod of the Pod that had the machine before, and that of the Pod that has it now.
        let (old, next) = (scene.pods.run("old").await?, scene.pods.run("next").await?);
        stand.give("next").await?;
        let stale = scene.caa.record(&old, "byom", &address).await?.name_any();
        scene.caa.record(&next, "byom", &address).await?;
        scene.pods.delete("old").await?;
        wait::gone(&scene.peerpods, &stale, DEADLINE).await?;
        ensure!(stand.told()?.is_none(), "the machine of another Pod was told to restart");
        ensure!(stand.pool.content().await?.allocated[&address] == "next");
        scene.pods.delete("next").await?;
        stand.returned(DEADLINE).await?;

        let requests = scene.testbed.audit()?.of_operator()?.split_off(before);
        let refused: Vec<_> = requests.iter().filter(|request| request.code == 403).collect();
        ensure!(refused.is_empty(), "{refused:?}");
        Ok(())
    })
}

#[test]
fn a_machine_that_comes_back_to_its_former_pod_does_not_restart_under_the_next_one() -> Result<()> {
    let stand = OnceCell::new();
    let start = async |testbed: &Testbed, dir: &Path, _: &_| with_operator(testbed, dir, &stand).await;
    alone_with(start, async |alone| {
        let (scene, stand) = (alone.scene(), stand.get().context("it was started")?);
        let address = stand.address();
        let (web, since) = (scene.pods.run("web").await?, Timestamp::now());
        stand.give_since("web", since).await?;
        let recorded = scene.caa.record(&web, "byom", &address).await?.name_any();
        // cloud-api-adaptor returns the machine itself, and gives it to another Pod.
        stand.pool.end(&address).await?;
        let next = scene.pods.run("next").await?;
        scene.caa.record(&next, "byom", &address).await?;
        knows(&alone.operator, 2).await?;
        scene.pods.delete("web").await?;
        wait::eventually("the operator sees that the machine is available", DEADLINE, async || {
            let labels = [("call", "describe"), ("result", "unsettled")];
            let seen = alone.operator.metrics().await?.sum("peerpod_operator_provider_calls_total", &labels);
            ensure!(seen > 0.0, "it has not looked yet");
            Ok(())
        })
        .await?;
        // It writes the pool as it read it before.
        stand.give_since("web", since).await?;
        scene.held(&recorded, "ClaimedByAnother").await?;
        ensure!(stand.told()?.is_none(), "the machine of another Pod was told to restart");
        ensure!(stand.pool.content().await?.allocated[&address] == "web");
        Ok(())
    })
}

#[test]
fn forged_peerpods_neither_keep_a_machine_nor_take_an_unrecorded_one() -> Result<()> {
    const FORGED: usize = 10;
    let stand = OnceCell::new();
    let start = async |testbed: &Testbed, dir: &Path, _: &_| with_operator(testbed, dir, &stand).await;
    alone_with(start, async |alone| {
        let (scene, stand) = (alone.scene(), stand.get().context("it was started")?);
        let elsewhere = scene.elsewhere().await?;
        let address = stand.address();

        // PeerPods without a Pod name the machine, in another namespace.
        let web = scene.pods.run("web").await?;
        stand.give("web").await?;
        for _ in 0..FORGED {
            let mut object = forged(&elsewhere.namespace, "web", &address)?;
            object["metadata"]["ownerReferences"] = json!([]);
            scene.caa.create(object).await?;
        }
        let recorded = scene.caa.record(&web, "byom", &address).await?.name_any();
        knows(&alone.operator, FORGED + 1).await?;
        scene.pods.delete("web").await?;
        wait::gone(&scene.peerpods, &recorded, RELEASED).await?;
        ensure!(stand.told()?.is_some() && stand.pool.content().await?.allocations == 0);
        elsewhere.kubectl(&["delete", "peerpods", "--all"]).await?;
        knows(&alone.operator, 0).await?;

        // cloud-api-adaptor has given the machine to a Pod and not recorded that yet.
        let classes: Api<RuntimeClass> = Api::all(scene.testbed.client());
        let class = json!({ "metadata": { "name": "kata-remote" }, "handler": "kata-remote" });
        classes.create(&PostParams::default(), &serde_json::from_value(class)?).await?;
        let victim = json!({
            "metadata": { "name": "db-0" },
            "spec": {
                "nodeName": "fake-0", "runtimeClassName": "kata-remote", "terminationGracePeriodSeconds": 1,
                "automountServiceAccountToken": false, "containers": [{ "name": "main", "image": "any" }],
            },
        });
        let pods = scene.pods.api();
        let victim = pods.create(&PostParams::default(), &serde_json::from_value(victim)?).await?;
        stand.give("db-0").await?;
        let thief = scene.caa.create(forged(&elsewhere.namespace, "db-0", &address)?).await?.name_any();
        elsewhere.kubectl(&["delete", "peerpod", &thief, "--wait=false"]).await?;
        let told = elsewhere.held(&thief, "ClaimedByAnother").await?.message;
        ensure!(told.contains("a Pod of another namespace has the same name"), "{told}");
        elsewhere.shows_none_of(&thief, &[&scene.namespace]).await?;
        ensure!(stand.told()?.is_none(), "the machine of a Pod that starts was told to restart");
        ensure!(stand.pool.content().await?.allocated[&address] == "db-0");

        // From now on the record protects it.
        let recorded = scene.caa.record(&victim, "byom", &address).await?.name_any();
        knows(&alone.operator, 2).await?;
        elsewhere.held(&thief, "ClaimedByAnother").await?;
        ensure!(stand.told()?.is_none() && stand.pool.content().await?.allocated[&address] == "db-0");
        scene.pods.delete("db-0").await?;
        wait::gone(&scene.peerpods, &recorded, RELEASED).await?;
        // Either PeerPod may have had the machine returned.
        wait::gone(&elsewhere.peerpods, &thief, RELEASED).await?;
        ensure!(stand.told()?.is_some() && stand.pool.content().await?.allocations == 0);
        classes.delete("kata-remote", &DeleteParams::default()).await?;
        Ok(())
    })
}

/// Waits until the operator knows exactly so many PeerPods.
async fn knows(operator: &Operator, count: usize) -> Result<()> {
    wait::eventually(&format!("the operator knows {count} PeerPods"), DEADLINE, async || {
        let known = operator.metrics().await?.sum("peerpod_operator_peerpods", &[]);
        ensure!((known - f64::from(u32::try_from(count)?)).abs() < 0.5, "it knows {known}");
        Ok(())
    })
    .await
}

/// A PeerPod in this namespace that names a Pod of this name, which does not exist there.
fn forged(namespace: &str, pod: &str, address: &str) -> Result<Value> {
    let metadata = json!({ "name": pod, "namespace": namespace, "uid": "7d9f5c1e-forged" });
    Ok(peerpod_object(&serde_json::from_value(json!({ "metadata": metadata }))?, "byom", address))
}

#[test]
fn a_machine_that_cannot_be_restarted_returns_to_the_pool_soon() -> Result<()> {
    without_operator(async |testbed| {
        let dir = tempfile::tempdir()?;
        let stand = Stand::start(testbed, dir.path(), 1).await?;
        let trusted = dir.path().join("trusted");
        fs::create_dir(&trusted)?;
        let mut settings = stand.settings();
        settings.config_map.insert("SSH_HOST_KEY_ALLOWLIST_DIR".to_owned(), trusted.display().to_string());
        settings.config_map.insert("SSH_TIMEOUT".to_owned(), "8".to_owned());
        let provider = settings.open_in(testbed.client(), None)?;
        let tell = async |pod: &str, address: &str| -> Result<Option<String>> {
            stand.pool.give(&format!("{pod}-0123456789abcdef"), address, pod, Timestamp::now()).await?;
            let start = Instant::now();
            reap(&*provider, address, pod).await?;
            ensure!(start.elapsed() < Duration::from_secs(30), "{pod}: {:?}", start.elapsed());
            stand.told()
        };
        let here = stand.address();
        ensure!(tell("no-keys", &here).await?.is_none(), "a host was trusted without a key");
        fs::write(
            trusted.join("mine.pub"),
            fs::read_to_string(stand.sshd.key("rsa").with_extension("pub"))?,
        )?;
        ensure!(tell("wrong-key", &here).await?.is_none(), "a host with another key was trusted");
        // The type of key that sshd would not choose by itself.
        fs::write(trusted.join("host.pub"), stand.sshd.host_key("rsa")?)?;
        ensure!(tell("right-key", &here).await?.is_some(), "a host with a trusted key was not told");
        ensure!(tell("nobody", &machine(1)).await?.is_none());
        // Another Pod gets the machine between the proof and the deletion.
        stand.give("early").await?;
        let vm = provider.describe(&InstanceId::of(&CLOUD, &here)?, &claim("early")).await?;
        let own = ownership::verify(vm, "early", CLOUD.name_limit)?;
        stand.give("late").await?;
        provider.delete(&own).await?;
        ensure!(stand.told()?.is_none(), "the machine of another Pod was told to restart");
        ensure!(stand.pool.content().await?.allocated[&here] == "late");
        stand.sshd.pause()?;
        ensure!(tell("hangs", &here).await?.is_none());
        let content = stand.pool.content().await?;
        ensure!(content.allocations == 0 && content.available.len() == 2, "{content:?}");
        Ok(())
    })
}

#[test]
fn no_allocation_is_lost_where_twenty_write_the_pool_while_twenty_machines_return() -> Result<()> {
    const COUNT: u8 = 20;
    without_operator(async |testbed| {
        let dir = tempfile::tempdir()?;
        let stand = Stand::start(testbed, dir.path(), 3 * COUNT).await?;
        let pods = |prefix: &'static str| (0..COUNT).map(move |number| format!("{prefix}-{number}"));
        let mut old = Vec::new();
        for pod in pods("old") {
            old.push((stand.pool.allocate(&pod).await?, pod));
        }
        let provider = stand.settings().open_in(testbed.client(), None)?;
        let reaped = try_join_all(old.iter().map(|(address, pod)| reap(&*provider, address, pod)));
        let allocated = try_join_all(pods("new").map(async |pod| stand.pool.allocate(&pod).await));
        let (reaped, allocated) = join(reaped, allocated).await;
        reaped?;
        let content = stand.pool.content().await?;
        let mut expected: Vec<_> = pods("new").zip(allocated?).map(|(pod, address)| (address, pod)).collect();
        expected.sort();
        let found: Vec<_> = content.allocated.clone().into_iter().collect();
        ensure!(found == expected && content.allocations == expected.len(), "{found:?}, not {expected:?}");
        let mut available = content.available.clone();
        available.sort();
        available.dedup();
        ensure!(available.len() == usize::from(2 * COUNT) + 1, "{content:?}");
        ensure!(content.version == 1 + 3 * i64::from(COUNT), "somebody wrote twice: {}", content.version);
        Ok(())
    })
}

#[test]
fn a_pool_that_is_another_one_or_does_not_know_the_machine_proves_nothing() -> Result<()> {
    without_operator(async |testbed| {
        let dir = tempfile::tempdir()?;
        let stand = Stand::start(testbed, dir.path(), 1).await?;
        let objects: Api<ConfigMap> = Api::namespaced(testbed.client(), NAMESPACE);
        let id = InstanceId::of(&CLOUD, &stand.address())?;
        let class = async |provider: &dyn Provider| -> Option<ErrorClass> {
            provider.describe(&id, &claim("web")).await.err().map(|error| error.class)
        };
        let provider = stand.settings().open_in(testbed.client(), None)?;
        let uid = provider.host().await?.context("a ConfigMap has a UID")?;
        assert_eq!(class(&*provider).await, Some(AVAILABLE));
        let far = InstanceId::of(&CLOUD, "10.9.8.7")?;
        let unknown = provider.describe(&far, &claim("web")).await.err().context("it is described")?;
        assert_eq!(unknown.class, ErrorClass::Invalid);

        // A node's clock may be ahead. Only if another PeerPod records the machine, it is a later Pod's for certain.
        let refused = Some(ErrorClass::Refused);
        for (ahead, expected, if_contested) in
            [(5, None, None), (60, refused, refused), (600, refused, Some(ErrorClass::NotFound))]
        {
            let since = Timestamp::now() + SignedDuration::from_secs(ahead);
            stand.pool.give("web-0123456789abcdef", &stand.address(), "web", since).await?;
            assert_eq!(class(&*provider).await, expected, "{ahead}");
            let contested = Claim { contested: true, ..claim("web") };
            let described = provider.describe(&id, &contested).await;
            assert_eq!(
                described.err().map(|error| error.class),
                if_contested,
                "{ahead}, recorded by another"
            );
        }

        // Another ConfigMap replaces the pool. In it the machine is available.
        let recorded = || Some(Recorded { address: POOL, host: Some(&uid), moved: None });
        let known = stand.settings().open_in(testbed.client(), recorded())?;
        objects.delete(POOL, &DeleteParams::default()).await?;
        assert_eq!(class(&*known).await, Some(ErrorClass::Invalid), "there is no pool");
        stand.pool.create(&[stand.address()]).await?;
        assert_eq!(class(&*known).await, Some(ErrorClass::Transient), "it is another pool");
        let mut wrong = stand.settings();
        wrong.config_map.insert("POOL_NAMESPACE".to_owned(), "default".to_owned());
        let wrong = wrong.open_in(testbed.client(), None)?;
        assert_eq!(class(&*wrong).await, Some(ErrorClass::Invalid), "there is no pool in that namespace");
        let mut object = objects.get(POOL).await?;
        object.data = Some([("allocation-state".to_owned(), "{}".to_owned())].into());
        objects.replace(POOL, &PostParams::default(), &object).await?;
        assert_eq!(class(&*provider).await, Some(ErrorClass::Invalid), "it is no pool");
        ensure!(stand.told()?.is_none());
        Ok(())
    })
}

#[test]
fn check_tries_the_pool_and_a_machine_and_names_what_is_missing() -> Result<()> {
    without_operator(async |testbed| {
        let dir = tempfile::tempdir()?;
        let stand = Stand::start(testbed, dir.path(), 0).await?;
        let kubeconfig = testbed.kubeconfig_of(install::NAME).await?.display().to_string();
        let environment = [("KUBECONFIG", kubeconfig.as_str())];
        let content = stand.pool.content().await?;
        wait::eventually("check finds nothing wrong", DEADLINE, async || {
            let (output, cloud) = check(dir.path(), &stand.settings(), &environment).await?;
            ensure!(output.status.success() && outcomes(&cloud) == ["works"; 3], "{cloud}");
            Ok(())
        })
        .await?;
        ensure!(stand.pool.content().await? == content && stand.told()?.is_none(), "check changes something");

        let (output, cloud) = check(dir.path(), &stand.settings(), &[]).await?;
        ensure!(!output.status.success() && cloud.to_string().contains("KUBECONFIG"), "{cloud}");
        let (output, cloud) = check(dir.path(), &Settings::byom(Path::new("/nowhere")), &environment).await?;
        assert_eq!(output.status.code(), Some(3), "{cloud}");
        ensure!(findings(&cloud)[2].1.contains("/nowhere"), "{cloud}");

        let name = format!("rolebinding/{}-{CLOUD}", install::NAME);
        let namespace = format!("--namespace={NAMESPACE}");
        testbed.cluster().kubectl(&["delete", &name, &namespace]).await?;
        wait::eventually("check names the right that is missing", DEADLINE, async || {
            let (output, cloud) = check(dir.path(), &stand.settings(), &environment).await?;
            ensure!(
                output.status.code() == Some(3) && cloud.to_string().contains("get and update"),
                "{cloud}"
            );
            Ok(())
        })
        .await
    })
}
