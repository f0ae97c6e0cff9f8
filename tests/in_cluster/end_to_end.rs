//! The whole way: install as documented, reap machines, admit peer pods.
//!
//! The harness begins tests in the order of their names. These names need the fewest installations: kustomize's is there already, from
//! the tests of cloud-api-adaptor, and the two tests of helm follow each other.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use cluster::node;
use k8s_openapi::api::{
    apps::v1::{ControllerRevision, DaemonSet, Deployment},
    core::v1::Node,
};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams},
};
use peerpod_operator::{
    NAMESPACE,
    api::v1alpha1::{EXTENDED_RESOURCE, PeerPodConfig},
    names::SSH_KEY_SECRET,
};
use peers::{
    libvirt::QemuLibvirtd,
    sshd::{self, Sshd},
};
use serde_json::json;
use testbed::{
    docs, stand_in,
    wait::{self, DEADLINE},
};

use crate::{
    configuration,
    installation::Way,
    reaping,
    support::{Installation, alone},
};

/// The default label of nodes for peer pods in a `PeerPodConfig`.
const WORKER: &str = "node.kubernetes.io/worker=";

/// The default limit of VMs in a `PeerPodConfig`.
const LIMIT: &str = "10";

#[test]
fn a_kustomization_installs_what_reaps_a_machine_and_brings_a_peer_pod_config() -> Result<()> {
    alone(async |installation| {
        installation.install(Way::Kustomize).await?;
        Box::pin(reaping::reaps_the_machine_of_a_pod_on_the_real_node(installation, installation.host()))
            .await?;
        // The namespace belongs to this installation. A second apply grants it what cloud-api-adaptor needs.
        let image = format!("{}:{}", stand_in::NAME, stand_in::TAG);
        let patch = json!([{ "op": "add", "path": "/spec/adaptor", "value": { "image": image } }]);
        let lines = format!(
            "components: [../kustomize/components/peerpodconfig]\n\
             patches:\n\
             - target: {{kind: PeerPodConfig}}\n\
             \x20 patch: '{patch}'\n"
        );
        installation.shell.append("my-cluster/kustomization.yaml", &lines)?;
        installation.shell.run("kubectl apply -k my-cluster").await?;
        works(installation).await
    })
}

#[test]
fn a_plain_manifest_installs_what_passes_its_check_and_reaps_a_machine() -> Result<()> {
    alone(async |installation| {
        installation.install(Way::Manifests).await?;
        let report = installation.shell.documented("check").await?;
        ensure!(report.contains("The settings are correct, and the cloud answers."), "{report}");
        let host = installation.host();
        Box::pin(reaping::reaps_the_machine_of_a_pod_on_the_real_node(installation, host)).await
    })
}

#[test]
fn helm_installs_what_reaps_a_qemu_machine_by_ssh_and_brings_a_peer_pod_config() -> Result<()> {
    alone(async |installation| {
        let (libvirtd, sshd) = qemu_behind_ssh(installation).await?;
        installation.remove().await?;
        prepare_namespace(installation, &sshd).await?;
        let tcp = installation.shell.set_libvirt(format!("qemu+ssh://root@{}/system", sshd.authority()));
        installation.install(Way::Helm).await?;
        // The namespace never granted the operator's Pods more than the profile `restricted`.
        ensure!(installation.enforced().await? == "restricted");
        Box::pin(reaping::reaps_the_machine_of_a_pod_on_the_real_node(installation, libvirtd.host())).await?;
        ensure!(sshd.sessions()? > 0, "it did not go by ssh");
        let (name, tag) = (stand_in::NAME, stand_in::TAG);
        let lines = format!("peerPodConfig: {{create: true}}\nimage: {{name: {name}, tag: '{tag}'}}\n");
        installation.shell.append("my-values.yaml", &lines)?;
        // The first commands of the documentation write the file. Only its last command, which installs, also upgrades.
        let upgrade = format!(
            "helm upgrade --install peerpod-operator helm/peerpod-operator --namespace {NAMESPACE} \
             --values my-values.yaml --timeout 2m"
        );
        // The Job that brings the PeerPodConfig needs no more than the profile `restricted` grants. Helm does not wait for the
        // new operator; the Job does.
        installation.shell.run(&upgrade).await?;
        installation.shell.run(&format!("{upgrade} --set limit=3")).await?;
        ensure!(limit(installation).await? == "3");
        installation.shell.run(&format!("helm rollback peerpod-operator --namespace {NAMESPACE}")).await?;
        ensure!(limit(installation).await? == LIMIT);
        installation.enforce("privileged").await?;
        works(installation).await?;
        // Restores what the next tests expect. A machine that is still recorded exists only on this libvirtd, and would hold its PeerPod.
        installation.end_peer_pods().await?;
        installation.set(json!({ "LIBVIRT_URI": tcp })).await?;
        installation.forget_earlier_places().await?;
        installation.shell.set_libvirt(tcp);
        Ok(())
    })
}

#[test]
fn helm_reinstalls_an_operator_which_finds_the_lease_free() -> Result<()> {
    alone(async |installation| {
        installation.install(Way::Helm).await?;
        let held = async || installation.holder().await?.context("nobody holds the lease");
        wait::eventually("an operator holds the lease", DEADLINE, held).await?;
        installation.remove().await?;
        assert_eq!(installation.holder().await?, None);
        installation.install(Way::Helm).await?;
        let host = installation.host();
        Box::pin(reaping::reaps_the_machine_of_a_pod_on_the_real_node(installation, host)).await
    })
}

/// A libvirtd whose machines are real processes, and an sshd in front of it that Pods reach.
async fn qemu_behind_ssh(installation: &Installation) -> Result<(QemuLibvirtd, Sshd)> {
    let libvirtd = QemuLibvirtd::start(&installation.dir.join("qemu")).await?;
    let socket = libvirtd.host().uri().socket().context("this libvirtd has a socket")?;
    let options = sshd::Options {
        libvirt: socket.parent().map(ToOwned::to_owned),
        address: installation.testbed.cluster().host_address(),
        ..sshd::Options::default()
    };
    let sshd = Sshd::start(&installation.dir.join("qemu-sshd"), &options).await?;
    Ok((libvirtd, sshd))
}

/// Makes the operator's namespace, with the key for ssh from a user's own folder, and with the host's key. It lets Pods in under the
/// profile `restricted` alone.
async fn prepare_namespace(installation: &Installation, sshd: &Sshd) -> Result<()> {
    let home = installation.dir.join("home");
    fs::create_dir_all(home.join(".ssh"))?;
    fs::copy(sshd.key("rsa"), home.join(".ssh/id_rsa"))?;
    let known_hosts = fs::read_to_string(sshd.known_hosts("ed25519")?)?;
    let patch = json!({ "stringData": { "known_hosts": known_hosts } });
    let delete = format!("kubectl delete namespace {NAMESPACE} --ignore-not-found");
    // The API server heeds a policy for up to a second after its deletion.
    let deleted = async || installation.shell.run(&delete).await;
    wait::eventually("the namespace is deleted", DEADLINE, deleted).await?;
    let commands = format!(
        "export HOME='{}'\n\
         {}\n\
         kubectl label namespace {NAMESPACE} pod-security.kubernetes.io/enforce=restricted\n\
         kubectl patch secret {SSH_KEY_SECRET} --namespace {NAMESPACE} --patch '{patch}'",
        home.display(),
        docs::block("ssh-key")?,
    );
    installation.shell.run(&commands).await.map(drop)
}

/// How many VMs the PeerPodConfig asks for.
async fn limit(installation: &Installation) -> Result<String> {
    let output = "--output=jsonpath={.spec.limit}";
    installation
        .testbed
        .cluster()
        .kubectl(&["get", "peerpodconfig", "config", "--namespace", NAMESPACE, output])
        .await
}

/// Fails unless everything that the configuration asks for works on the real node. Leaves nothing of it.
async fn works(installation: &Installation) -> Result<()> {
    let outcome = is_brought_about(installation).await;
    installation.enforce("restricted").await?;
    outcome
}

async fn is_brought_about(installation: &Installation) -> Result<()> {
    configuration::runtime_class(installation).await?;
    installation.testbed.cluster().kubectl(&["label", "--overwrite", "node", node::NAME, WORKER]).await?;
    let client = installation.testbed.client();
    let configs: Api<PeerPodConfig> = Api::namespaced(client.clone(), NAMESPACE);
    let ready = |config: &PeerPodConfig| {
        let conditions = config.status.iter().flat_map(|status| &status.conditions);
        conditions.into_iter().any(|it| it.type_ == "Ready" && it.status == "True")
    };
    wait::present(&configs, "config", "the PeerPodConfig is ready", 2 * DEADLINE, ready).await?;

    let part = ListParams::default().labels("app.kubernetes.io/instance=config");
    let adaptors: Api<DaemonSet> = Api::namespaced(client.clone(), NAMESPACE);
    let adaptors = adaptors.list(&part).await?.items;
    let [adaptor] = &*adaptors else { anyhow::bail!("{} DaemonSets are there", adaptors.len()) };
    let status = adaptor.status.clone().unwrap_or_default();
    ensure!((status.desired_number_scheduled, status.number_ready) == (1, 1), "{status:?}");
    // Fails if the old operator, which the upgrade replaces, made the DaemonSet with its old image first.
    let revisions: Api<ControllerRevision> = Api::namespaced(client.clone(), NAMESPACE);
    let mut revisions = revisions.list(&ListParams::default()).await?.items;
    revisions
        .retain(|it| it.owner_references().iter().any(|owner| Some(&owner.uid) == adaptor.uid().as_ref()));
    ensure!(revisions.len() == 1, "the DaemonSet was changed {} times", revisions.len() - 1);
    let log = format!("daemonset/{}", adaptor.name_any());
    let log = installation.testbed.cluster().kubectl(&["logs", &log, "--namespace", NAMESPACE]).await?;
    ensure!(log.contains("A stand-in for cloud-api-adaptor"), "{log}");

    let webhooks: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
    // The configuration is ready once one of them answers.
    wait::eventually("both webhooks run", DEADLINE, async || {
        let webhooks = webhooks.list(&part).await?.items;
        let running = webhooks.iter().filter_map(|it| it.status.as_ref()?.available_replicas).sum::<i32>();
        ensure!(running == 2, "{running} webhooks run of {} Deployments", webhooks.len());
        Ok(())
    })
    .await?;
    let namespace = installation.testbed.namespace("test").await?;
    configuration::admits_peer_pods(installation, &namespace).await?;

    let nodes: Api<Node> = Api::all(client);
    let node = nodes.get(node::NAME).await?;
    let vms =
        node.status.and_then(|it| it.allocatable?.remove(EXTENDED_RESOURCE)).context("it advertises none")?;
    ensure!(vms.0 == LIMIT, "the node advertises {} VMs", vms.0);

    configs.delete("config", &DeleteParams::default()).await?;
    wait::gone(&configs, "config", DEADLINE).await
}
