//! The generated kustomizations, as kubectl's own kustomize builds them and the real API server takes them.

use std::{env, fs, path::Path, process::Stdio};

use anyhow::{Context as _, Result, ensure};
use cluster::{Cluster, clients::quick};
use kube::{Api, ResourceExt as _, api::DeleteParams};
use peerpod_operator::{
    NAMESPACE,
    api::v1alpha1::PeerPodConfig,
    install::{self, evictions, metrics_rights, removal},
    provider::CLOUDS,
    settings::{Common, Key},
};
use serde_json::Value;
use tempfile::TempDir;
use testbed::{
    Testbed, docs,
    wait::{self, DEADLINE},
};
use tokio::process::Command;

use crate::{
    peerpodconfig::configuration::stage::{self, configuring},
    support::{beside_others, without_operator},
};

/// The folder of the overlay for libvirt.
pub const LIBVIRT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/kustomize/overlays/libvirt");

pub const KUSTOMIZE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/kustomize");

/// Every object that a kustomization consists of.
pub async fn built(cluster: &Cluster, folder: &str) -> Result<Vec<Value>> {
    let text = cluster.kubectl(&["kustomize", folder]).await?;
    let documents = serde_yaml::Deserializer::from_str(&text);
    Ok(documents.map(serde::Deserialize::deserialize).collect::<Result<_, _>>()?)
}

pub fn data<'a>(objects: &'a [Value], kind: &str) -> Result<&'a serde_json::Map<String, Value>> {
    let object =
        objects.iter().find(|object| object["kind"] == kind).with_context(|| format!("no {kind}"))?;
    object["data"].as_object().with_context(|| format!("a {kind} without data"))
}

/// Allows everything to be deleted.
pub async fn allow_removal(cluster: &Cluster) -> Result<()> {
    annotate(cluster, &format!("{}=true", removal::ALLOW_ANNOTATION)).await
}

/// Withdraws the permission. Objects that were not removed still have the annotation.
pub async fn forbid_removal(cluster: &Cluster) -> Result<()> {
    annotate(cluster, &format!("{}-", removal::ALLOW_ANNOTATION)).await
}

async fn annotate(cluster: &Cluster, annotation: &str) -> Result<()> {
    for kind in ["crd", "namespace"] {
        let label = "--selector=app.kubernetes.io/part-of=peer-pods";
        cluster.kubectl(&["annotate", kind, label, annotation]).await?;
    }
    Ok(())
}

/// Removes all objects of the overlay. Returns when they are gone.
pub async fn remove(cluster: &Cluster) -> Result<()> {
    // An API server that cannot list the objects of a new definition yet fails to delete the definition, and may retry only minutes
    // later. After the first answered list, that no longer happens. Before that, kubectl may not know the kinds.
    wait::eventually("the kinds are known, and there are no objects", DEADLINE, async || {
        let all = ["get", "peerpods,peerpodconfigs", "--all-namespaces", "--output=name"];
        let left = cluster.kubectl(&all).await?;
        ensure!(left.is_empty(), "there would be left: {left}");
        Ok(())
    })
    .await?;
    allow_removal(cluster).await?;
    cluster.kubectl(&["delete", "-k", LIBVIRT, "--ignore-not-found", "--timeout=180s"]).await.map(drop)
}

#[test]
fn the_overlay_is_installed_as_it_is_and_a_second_apply_changes_nothing() -> Result<()> {
    without_operator(async |testbed: &Testbed| {
        let cluster = testbed.cluster();
        remove(cluster).await.context("removing what is there, with no PeerPod")?;
        let first = cluster.kubectl(&["apply", "-k", LIBVIRT]).await?;
        let installed = install::objects(&install::Options::default())?.len() + 2;
        ensure!(first.lines().filter(|line| line.ends_with(" created")).count() == installed, "{first}");
        let second = cluster.kubectl(&["apply", "-k", LIBVIRT]).await?;
        ensure!(second.lines().all(|line| line.ends_with(" unchanged")), "{second}");
        // All fields have the same owner, whichever way they are applied.
        for _ in 0..2 {
            cluster.kubectl(&["apply", "--server-side", "-k", LIBVIRT]).await?;
        }
        remove(cluster).await
    })
}

#[test]
fn every_overlay_has_every_setting_of_its_provider_and_is_accepted() -> Result<()> {
    beside_others(async |scene| {
        let cluster = scene.testbed.cluster();
        let mut taken = Vec::new();
        for provider in CLOUDS {
            let folder = format!("{KUSTOMIZE}/overlays/{provider}");
            let objects = built(cluster, &folder).await?;
            let (settings, credentials) = (data(&objects, "ConfigMap")?, data(&objects, "Secret")?);
            ensure!(settings["CLOUD_PROVIDER"] == provider.name());
            for Key { name, required, .. } in Common::KEYS.iter().chain(provider.keys()) {
                let values: Vec<_> = [settings, credentials].iter().filter_map(|it| it.get(*name)).collect();
                ensure!(!values.is_empty(), "{provider} lacks {name}");
                let empty = values.iter().all(|value| *value == "");
                ensure!(*name == "CLOUD_PROVIDER" || !required || empty, "{provider}: {name} is {values:?}");
            }
            // The overlays have most objects in common.
            let new: Vec<_> = objects.iter().filter(|object| !taken.contains(*object)).cloned().collect();
            accepted_with(cluster, &new, &["--warnings-as-errors"]).await.context(folder)?;
            taken.extend(new);
        }
        Ok(())
    })
}

/// A folder with the overlay for libvirt, this component and these further lines.
pub fn with_component(component: &str, further: &str) -> Result<TempDir> {
    with_components(&[component], further)
}

/// The same with these components, in this order.
fn with_components(components: &[&str], further: &str) -> Result<TempDir> {
    let dir = tempfile::tempdir()?;
    // kustomize takes relative paths alone.
    let up = "../".repeat(fs::canonicalize(dir.path())?.components().count() - 1);
    let relative = |folder: &str| format!("{up}{}", folder.trim_start_matches('/'));
    let components: Vec<_> =
        components.iter().map(|name| relative(&format!("{KUSTOMIZE}/components/{name}"))).collect();
    let text =
        format!("resources: [{}]\ncomponents: [{}]\n{further}", relative(LIBVIRT), components.join(", "));
    fs::write(dir.path().join("kustomization.yaml"), text)?;
    Ok(dir)
}

pub fn path(dir: &TempDir) -> Result<&str> {
    dir.path().to_str().context("UTF-8")
}

/// Runs a documented block in this repository.
pub async fn documented(cluster: &Cluster, block: &str) -> Result<()> {
    let kubectl = cluster.tools().kubectl.parent().context("kubectl is in a folder")?;
    let others = env::var_os("PATH").unwrap_or_default();
    let path = env::join_paths([kubectl.to_owned()].into_iter().chain(env::split_paths(&others)))?;
    let mut shell = Command::new("sh");
    shell.args(["-euc", &docs::block(block)?]).current_dir(env!("CARGO_MANIFEST_DIR"));
    shell.env("PATH", path).env("KUBECONFIG", cluster.kubeconfig()).stdin(Stdio::null());
    quick(shell.as_std_mut());
    let output = shell.kill_on_drop(true).output().await.context("running sh")?;
    ensure!(output.status.success(), "{block}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

#[test]
fn an_uninstall_can_keep_what_another_cloud_api_adaptor_needs() -> Result<()> {
    without_operator(async |testbed: &Testbed| {
        let cluster = testbed.cluster();
        remove(cluster).await.context("removing what is there, with no PeerPod")?;
        let folder = with_component("dashboard", "")?;
        let installation = path(&folder)?;
        cluster.kubectl(&["apply", "-k", installation]).await?;
        documented(cluster, "keep-adaptor").await?;
        let objects = built(cluster, installation).await?;
        let kept = objects.iter().filter(|object| {
            let kind = object["kind"].as_str().unwrap_or_default();
            let component = &object["metadata"]["labels"]["app.kubernetes.io/component"];
            ["CustomResourceDefinition", "Namespace", "Secret"].contains(&kind) || component == "adaptor"
        });
        let mut kept: Vec<_> = kept.map(|it| (it["kind"].clone(), it["metadata"]["name"].clone())).collect();
        let left = ["get", "-k", installation, "--ignore-not-found", "--output=json"];
        let left = cluster.kubectl(&left).await?;
        let left: Value = serde_json::from_str(&left)?;
        let left = left["items"].as_array().context("a list")?;
        let mut left: Vec<_> =
            left.iter().map(|it| (it["kind"].clone(), it["metadata"]["name"].clone())).collect();
        for names in [&mut kept, &mut left] {
            names.sort_by_key(|(kind, name)| format!("{kind} {name}"));
        }
        ensure!(left == kept, "{left:?} is left, and not {kept:?}");
        remove(cluster).await
    })
}

#[test]
fn a_second_apply_of_a_configuration_changes_nothing() -> Result<()> {
    configuring(async |alone| {
        let cluster = alone.testbed.cluster();
        let folder = with_component("peerpodconfig", "")?;
        let apply = ["apply", "-k", path(&folder)?];
        alone.operator.stop().await?;
        remove(cluster).await?;
        documented(cluster, "definitions").await?;
        let first = cluster.kubectl(&apply).await.context("the first apply")?;
        ensure!(first.contains("peerpodconfig.confidentialcontainers.org/config created"), "{first}");

        // Starts an operator with a token of the present ServiceAccount.
        let dir = tempfile::tempdir()?;
        let _operator = stage::operator(alone.testbed, dir.path(), &alone.libvirtd).await?;
        let configs: Api<PeerPodConfig> = Api::namespaced(alone.testbed.client(), NAMESPACE);
        let written = |config: &PeerPodConfig| !config.finalizers().is_empty() && config.status.is_some();
        wait::present(&configs, "config", "the operator has written to it", DEADLINE, written).await?;
        for _ in 0..2 {
            let again = cluster.kubectl(&apply).await?;
            ensure!(again.lines().all(|line| line.ends_with(" unchanged")), "{again}");
        }
        configs.delete("config", &DeleteParams::default()).await?;
        wait::gone(&configs, "config", DEADLINE).await
    })
}

#[test]
fn every_component_fits_the_overlay_and_does_what_it_says() -> Result<()> {
    beside_others(async |scene| {
        let cluster = scene.testbed.cluster();
        let plain = built(cluster, LIBVIRT).await?;
        for entry in fs::read_dir(Path::new(KUSTOMIZE).join("components"))? {
            let component = entry?.file_name().into_string().ok().context("UTF-8")?;
            let folder = with_component(&component, "")?;
            let objects = built(cluster, path(&folder)?).await.context(component.clone())?;
            let new: Vec<_> = objects.iter().filter(|object| !plain.contains(object)).collect();
            let kinds: Vec<_> = new.iter().filter_map(|object| object["kind"].as_str()).collect();
            let expected: &[&str] = match &*component {
                "alerts" => &["PrometheusRule"],
                "cert-manager" => &["Certificate", "Certificate", "Issuer", "Issuer"],
                "dashboard" => &["ConfigMap"],
                "deny-guard" => &["ValidatingAdmissionPolicyBinding"],
                "evict-lost-pods" => &["ClusterRole", "ClusterRoleBinding", "Deployment"],
                "disruption-budget" => &["PodDisruptionBudget"],
                "network-policies" => &["NetworkPolicy", "NetworkPolicy"],
                "no-guard" => &[],
                "no-peerpodconfig" => &["Deployment"],
                "peerpodconfig" => &["PeerPodConfig"],
                "pod-monitor" => &["PodMonitor"],
                "secure-metrics" => &["ClusterRole", "ClusterRole", "ClusterRoleBinding", "Deployment"],
                other => panic!("nobody knows the component {other}"),
            };
            ensure!(kinds == expected, "{component}: {kinds:?}");
            let fewer = plain.len() - objects.iter().filter(|object| plain.contains(object)).count();
            match &*component {
                "no-guard" => ensure!(fewer == 2 && new.is_empty(), "{fewer}"),
                "no-peerpodconfig" => {
                    let arguments = new[0]["spec"]["template"]["spec"]["containers"][0]["args"].to_string();
                    ensure!(
                        fewer == 10 && arguments.contains("--controllers=peerpod\""),
                        "{fewer}: {arguments}"
                    );
                }
                "secure-metrics" => {
                    let arguments = new[3]["spec"]["template"]["spec"]["containers"][0]["args"].to_string();
                    ensure!(fewer == 1 && arguments.contains("--metrics-secure=true"), "{arguments}");
                }
                "evict-lost-pods" => {
                    let arguments = new[2]["spec"]["template"]["spec"]["containers"][0]["args"].to_string();
                    ensure!(fewer == 1 && arguments.contains(evictions::ARGUMENT), "{arguments}");
                }
                "deny-guard" => ensure!(new[0]["spec"]["validationActions"][0] == "Deny", "{new:?}"),
                _ => {}
            }
            // The others' kinds are not Kubernetes' own.
            if !["alerts", "cert-manager", "pod-monitor"].contains(&&*component) {
                let objects: Vec<_> = new.into_iter().cloned().collect();
                if !objects.is_empty() {
                    accepted(cluster, &objects).await.context(component)?;
                }
            }
        }
        Ok(())
    })
}

/// The accounts that may ask the API server about tokens.
pub fn reviewers(objects: &[Value]) -> Result<Vec<&str>> {
    let mut bindings = objects.iter().filter(|object| object["kind"] == "ClusterRoleBinding");
    let binding = bindings.find(|binding| binding["metadata"]["name"] == metrics_rights::REVIEWER);
    let subjects = binding.and_then(|binding| binding["subjects"].as_array()).context("no subjects")?;
    Ok(subjects.iter().filter_map(|subject| subject["name"].as_str()).collect())
}

#[test]
fn without_its_controller_the_webhook_may_not_review_tokens() -> Result<()> {
    beside_others(async |scene| {
        let folder = with_components(&["secure-metrics", "no-peerpodconfig"], "")?;
        let objects = built(scene.testbed.cluster(), path(&folder)?).await?;
        let names = reviewers(&objects)?;
        ensure!(names == [install::NAME], "{names:?}");
        Ok(())
    })
}

/// Fails unless the API server would accept these objects with all their fields.
pub async fn accepted(cluster: &Cluster, objects: &[Value]) -> Result<()> {
    accepted_with(cluster, objects, &[]).await
}

/// The same with further options of `kubectl apply`.
async fn accepted_with(cluster: &Cluster, objects: &[Value], options: &[&str]) -> Result<()> {
    let dir = tempfile::tempdir()?;
    for (number, object) in objects.iter().enumerate() {
        fs::write(dir.path().join(format!("{number}.json")), object.to_string())?;
    }
    let dry = ["apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict"];
    let files = ["--filename", dir.path().to_str().context("UTF-8")?];
    cluster.kubectl(&[&dry[..], &files, options].concat()).await.map(drop)
}
