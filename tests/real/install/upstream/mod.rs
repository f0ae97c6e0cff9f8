//! Migration from cloud-api-adaptor's own controllers to this operator, by the steps of docs/src/install/migrate.md.

mod chart;
mod holder;

use std::fs;

use anyhow::{Context as _, Result, ensure};
use cluster::Cluster;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use peerpod_operator::{NAMESPACE, api::v1alpha1::FINALIZER, install, names::PEERPOD_CTRL_LEASE};
use peers::libvirt::PodVm;
use serde_json::{Value, json};
use tempfile::TempDir;
use testbed::{
    Operator, OperatorOptions, Settings, Testbed, Vm, peerpod_object, vm_name,
    wait::{self, DEADLINE},
};

use self::holder::Holder;
use crate::{
    install::helm::{
        Helm,
        hook::{self, NOWHERE},
    },
    install::kustomize::{LIBVIRT, allow_removal, remove},
    peerpodconfig::configuration::stage::Stage,
    support::{Alone, PROGRAM, Scene, alone, without_operator},
};

/// The release of cloud-api-adaptor's chart.
const THEIRS: &str = "peerpods";

const DEFINITION: &str = "peerpods.confidentialcontainers.org";

/// cloud-api-adaptor's chart.
struct Upstream {
    dir: TempDir,
}

impl Upstream {
    /// Installs it on a cluster without any object of this operator.
    async fn install(helm: &Helm, testbed: &Testbed, libvirt_uri: &str) -> Result<Self> {
        remove(testbed.cluster()).await?;
        testbed.apply("cert-manager", &chart::cert_manager()).await?;
        let upstream = Self { dir: tempfile::tempdir()? };
        chart::write(upstream.dir.path(), libvirt_uri)?;
        let values = json!({
            "provider": "libvirt", "providerConfigs": { "libvirt": { "LIBVIRT_URI": libvirt_uri } },
        });
        let file = upstream.dir.path().join("mine.yaml");
        fs::write(&file, values.to_string())?;
        let file = file.to_str().context("UTF-8")?;
        helm.run(&["install", THEIRS, upstream.chart()?, "--create-namespace", "--values", file]).await?;
        // The Secret that cert-manager makes for the Certificate, and leaves behind.
        let certificate = json!({
            "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
            "metadata": { "name": "webhook-server-cert", "namespace": NAMESPACE },
        });
        testbed.apply("certificate", &[certificate]).await?;
        Ok(upstream)
    }

    fn chart(&self) -> Result<&str> {
        self.dir.path().to_str().context("UTF-8")
    }
}

/// What is left in the cluster of these kinds, by name.
async fn names(cluster: &Cluster, kinds: &str) -> Result<String> {
    cluster.kubectl(&["get", kinds, "--all-namespaces", "--output=name"]).await
}

/// Records a machine under their definition. The administrator does it: on a cluster that is strict about owners, the rights that their
/// charts grant do not suffice.
async fn record(scene: &Scene<'_>, pod: &Pod) -> Result<Vm> {
    let machine: PodVm = scene.host.start_pod_vm(&vm_name(&pod.name_any())).await?;
    let object = peerpod_object(pod, "libvirt", &machine.domain.uuid.to_string());
    scene.testbed.apply("recorded", std::slice::from_ref(&object)).await?;
    let name = object["metadata"]["name"].as_str().context("a name")?;
    Ok(Vm { machine, peerpod: scene.peerpods.get(name).await? })
}

/// Starts the operator with the Deployment's arguments and the present settings.
async fn operator(alone: &Alone<'_>, dir: &TempDir, name: &str) -> Result<Operator> {
    let cluster = alone.testbed.cluster();
    let namespace = format!("--namespace={NAMESPACE}");
    let get = async |what: &str, path: &str| {
        let output = format!("--output=jsonpath={path}");
        cluster.kubectl(&["get", what, &namespace, &output]).await
    };
    let deployment = format!("deployment/{}", install::NAME);
    let arguments = get(&deployment, "{.spec.template.spec.containers[0].args}").await?;
    let arguments: Vec<String> = serde_json::from_str(&arguments)?;
    let of_lease =
        |argument: &String| ["--lease-", "--controllers="].iter().any(|it| argument.starts_with(it));
    let settings = Settings {
        config_map: serde_json::from_str(&get("configmap/peer-pods-cm", "{.data}").await?)?,
        ..Settings::default()
    };
    let options = OperatorOptions::new(PROGRAM, dir.path().join(name), settings);
    let arguments = arguments.into_iter().filter(of_lease).collect();
    Operator::start(alone.testbed, &OperatorOptions { arguments, ..options }).await
}

#[test]
fn a_migration_replaces_every_upstream_component_and_loses_no_machine() -> Result<()> {
    alone(async |alone| {
        alone.operator.kill().await?;
        let dir = tempfile::tempdir()?;
        let uri = alone.libvirtd.host().uri().to_string();
        let helm = Helm::of(alone.testbed.cluster()).await?;
        // The Pods come first: while their webhook does not answer, no Pod can be made.
        let (web, api) = (alone.scene().pods.run("web").await?, alone.scene().pods.run("api").await?);
        let upstream = Upstream::install(&helm, alone.testbed, &uri).await?;
        alone.testbed.collect_new_kinds().await?;
        let cluster = alone.testbed.cluster();
        let scene = alone.scene();
        let (web, api) = (record(&scene, &web).await?, record(&scene, &api).await?);
        let odd = json!({
            "apiVersion": "confidentialcontainers.org/v1alpha1", "kind": "PeerPod",
            "metadata": { "name": "odd", "namespace": alone.namespace, "finalizers": [FINALIZER] },
            "spec": { "cloudProvider": "lib virt" },
        });
        alone.testbed.apply("odd", &[odd]).await?;
        let theirs = Holder::start(alone.testbed, &dir.path().join("holder")).await?;

        // 1. This operator runs beside theirs and shares its lease.
        // No Pod of the chart's operator runs. helm would wait for a ready one.
        let share = ["--set", &format!("operator.leaseName={PEERPOD_CTRL_LEASE},{NOWHERE}")];
        let refused = helm.upgrade(&share).await.err().context("helm took what another release has")?;
        ensure!(
            format!("{refused:#}").contains("cannot be imported into the current release"),
            "{refused:#}"
        );
        helm.upgrade(&[&share[..], &["--take-ownership"]].concat()).await?;
        ensure!(scene.peerpods.get(&web.name()).await?.finalizers() == [FINALIZER]);
        let ours = operator(alone, &dir, "beside").await?;
        wait::eventually("it stands by", DEADLINE, async || {
            ensure!(ours.log()?.contains("standing by"));
            Ok(())
        })
        .await?;
        scene.pods.delete("web").await?;
        scene.going(&web.name()).await?;
        theirs.renews().await?;
        theirs.renews().await?;
        scene.lives(&web).await?;
        ensure!(scene.writes()?.is_empty(), "{:?}", scene.writes()?);

        // 2. Their controller ends, and this one takes its place.
        let off = ["--reuse-values", "--set", "resourceCtrl.enabled=false"];
        helm.run(&[&["upgrade", THEIRS, upstream.chart()?], &off[..]].concat()).await?;
        theirs.kill().await?;
        ensure!(!names(cluster, "deployments").await?.contains("peerpodctrl"));
        scene.reaped(&web).await?;
        scene.lives(&api).await?;
        // This operator also releases a PeerPod that only their definition accepted.
        scene.kubectl(&["delete", "peerpod", "odd", "--wait=false"]).await?;
        scene.abandon("odd").await?;
        scene.released("odd").await?;

        // 3. Webhook and cloud-api-adaptor.
        let kept = helm.run(&["get", "values", THEIRS, "--output=yaml"]).await?;
        ensure!(kept.contains("resourceCtrl:\n  enabled: false"), "{kept}");
        let values = dir.path().join("values.yaml");
        fs::write(&values, kept)?;
        helm.run(&["uninstall", THEIRS]).await?;
        let left = [
            "secret/webhook-server-cert",
            "certificate/peer-pods-webhook-serving-cert",
            "issuer/peer-pods-webhook-selfsigned-issuer",
        ];
        cluster.kubectl(&[&["delete", "--namespace", NAMESPACE], &left[..]].concat()).await?;
        let values = values.to_str().context("UTF-8")?;
        // The value that switched their reaper off would also switch this operator off. No webhook really runs here.
        let set =
            format!("resourceCtrl.enabled=true,peerPodConfig.create=true,admission.mode=Policy,{NOWHERE}");
        let upgrade = ["--reset-then-reuse-values", "--take-ownership", "--values", values, "--set", &set];
        hook::during(alone.testbed, install::APPLY_JOB, helm.upgrade(&upgrade)).await?;
        let kinds = "mutatingwebhookconfigurations,deployments,daemonsets,services,issuers,certificates";
        let left = names(cluster, kinds).await?;
        for gone in ["peer-pods-webhook", "cloud-api-adaptor-daemonset", "peerpodctrl"] {
            ensure!(!left.contains(gone), "{gone} is there: {left}");
        }
        ours.stop().await?;
        let ours = operator(alone, &dir, "alone").await?;
        let stage = Stage::set(alone, 1).await?;
        cluster.kubectl(&["label", "node", &stage.nodes.names()[0], "node.kubernetes.io/worker="]).await?;
        stage.until("config", "Ready", "AllReady").await?;
        scene.lives(&api).await?;
        scene.pods.delete("api").await?;
        scene.released(&api.name()).await.with_context(|| ours.log_tail())?;
        scene.vanished(&api).await?;
        stage.clear("config").await?;
        ours.stop().await?;

        helm.run(&["uninstall", "peerpod-operator", "--no-hooks"]).await?;
        clear(alone.testbed).await
    })
}

/// Removes the objects that no other test has.
async fn clear(testbed: &Testbed) -> Result<()> {
    let cluster = testbed.cluster();
    cluster.kubectl(&["delete", "crd", "issuers.cert-manager.io", "certificates.cert-manager.io"]).await?;
    let certificate = ["delete", "secret", "webhook-server-cert", "--namespace", NAMESPACE];
    cluster.kubectl(&[&certificate[..], &["--ignore-not-found"]].concat()).await?;
    testbed.install_objects().await
}

/// The versions of a definition, without its metadata and its status.
async fn definition(testbed: &Testbed) -> Result<Value> {
    let definition = testbed.crds().get(DEFINITION).await?;
    Ok(serde_json::to_value(definition.spec.versions)?)
}

#[test]
fn this_definition_replaces_theirs_by_client_and_server_side_apply() -> Result<()> {
    without_operator(async |testbed| {
        let ours = definition(testbed).await?;
        let helm = Helm::of(testbed.cluster()).await?;
        let cluster = testbed.cluster();
        for way in [&["apply"][..], &["apply", "--server-side"]] {
            Upstream::install(&helm, testbed, "test:///default").await?;
            ensure!(definition(testbed).await? != ours);
            let apply = [way, &["-k", LIBVIRT]].concat();
            if way.contains(&"--server-side") {
                let refused = cluster.kubectl(&apply).await.err().context("it took fields of helm's")?;
                ensure!(format!("{refused:#}").contains("conflict with \"helm\""), "{refused:#}");
                cluster.kubectl(&[&apply[..], &["--force-conflicts"]].concat()).await?;
            } else {
                cluster.kubectl(&apply).await?;
            }
            ensure!(definition(testbed).await? == ours, "by {way:?}");
            let again = cluster.kubectl(&apply).await?;
            let quiet = |line: &str| line.ends_with(" unchanged") || line.ends_with(" serverside-applied");
            ensure!(again.lines().all(quiet), "{again}");
            helm.run(&["uninstall", THEIRS]).await?;
            allow_removal(cluster).await?;
        }
        clear(testbed).await
    })
}
