//! The generated chart, as the real helm renders it and the real API server takes it.

pub mod hook;
mod notes;
mod null;
mod places;
mod release;
mod removal;
mod theirs;

use std::{path::PathBuf, process::Stdio};

use anyhow::{Context as _, Result, ensure};
use clap::Parser as _;
use cluster::{Cluster, clients::quick, tools};
use peerpod_operator::{NAMESPACE, OLDEST_KUBERNETES, cli::Cli, provider::CLOUDS};
use serde::Deserialize as _;
use serde_json::{Value, json};
use serde_yaml::Value as Yaml;
use tempfile::TempDir;
use tokio::process::Command;

use crate::{
    install::kustomize::{KUSTOMIZE, built, data},
    support::beside_others,
};

pub const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/helm/peerpod-operator");

const RELEASE: &str = "peerpod-operator";

/// helm as the cluster's administrator.
pub struct Helm {
    program: PathBuf,
    kubeconfig: PathBuf,
    home: TempDir,
}

impl Helm {
    pub async fn of(cluster: &Cluster) -> Result<Self> {
        let (program, kubeconfig) = (tools::helm().await?, cluster.kubeconfig());
        Ok(Self { program, kubeconfig, home: tempfile::tempdir()? })
    }

    /// The output of helm, or its error.
    pub async fn run(&self, arguments: &[&str]) -> Result<String> {
        self.run_in(NAMESPACE, arguments).await
    }

    async fn run_in(&self, namespace: &str, arguments: &[&str]) -> Result<String> {
        let mut helm = Command::new(&self.program);
        helm.args(arguments).args(["--namespace", namespace]).env("KUBECONFIG", &self.kubeconfig);
        quick(helm.as_std_mut());
        for folder in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
            helm.env(folder, self.home.path());
        }
        let output = helm.kill_on_drop(true).stdin(Stdio::null()).output().await.context("running helm")?;
        let problem = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "helm {}: {}", arguments.join(" "), problem.trim());
        Ok(String::from_utf8(output.stdout)?)
    }

    /// The chart's objects with these options.
    pub async fn rendered(&self, options: &[&str]) -> Result<Vec<Value>> {
        self.rendered_in(NAMESPACE, options).await
    }

    async fn rendered_in(&self, namespace: &str, options: &[&str]) -> Result<Vec<Value>> {
        // helm renders without a cluster, and a helm that was built from source would assume an old version of Kubernetes.
        let template = ["template", RELEASE, CHART, "--kube-version", OLDEST_KUBERNETES];
        let text = self.run_in(namespace, &[&template, options].concat()).await?;
        let documents = serde_yaml::Deserializer::from_str(&text);
        // `Yaml` refuses duplicate keys, so it reads the text first.
        let objects = documents.map(Yaml::deserialize).collect::<Result<Vec<_>, _>>()?;
        let objects = objects.iter().filter(|object| !object.is_null());
        Ok(objects.map(serde_json::to_value).collect::<Result<_, _>>()?)
    }

    /// Installs or upgrades this chart.
    pub async fn upgrade(&self, options: &[&str]) -> Result<String> {
        self.run(&[&["upgrade", "--install", RELEASE, CHART, "--create-namespace"], options].concat()).await
    }
}

/// The objects in a fixed order, with numbers in one spelling: kustomize writes 1 where it reads 1.0.
fn sorted(mut objects: Vec<Value>) -> Vec<Value> {
    fn spell(value: &mut Value) {
        match value {
            Value::Object(fields) => fields.values_mut().for_each(spell),
            Value::Array(items) => items.iter_mut().for_each(spell),
            Value::Number(number) => *value = number.as_f64().into(),
            _ => {}
        }
    }
    objects.iter_mut().for_each(spell);
    objects.sort_by_key(|object| {
        [&object["kind"], &object["metadata"]["namespace"], &object["metadata"]["name"]].map(Value::to_string)
    });
    objects
}

fn of_kind<'a>(objects: &'a [Value], kind: &str) -> Result<&'a Value> {
    objects.iter().find(|object| object["kind"] == kind).with_context(|| format!("there is no {kind}"))
}

#[test]
fn the_chart_is_the_kustomize_base_object_for_object() -> Result<()> {
    beside_others(async |scene| {
        let cluster = scene.testbed.cluster();
        let helm = Helm::of(cluster).await?;
        helm.run(&["lint", "--strict", CHART]).await?;
        let mut rendered = helm.rendered(&["--no-hooks"]).await?;
        for object in rendered.iter_mut().filter(|object| object["kind"] == "CustomResourceDefinition") {
            let annotations = object["metadata"]["annotations"].as_object_mut();
            let policy = annotations.and_then(|it| it.remove("helm.sh/resource-policy"));
            ensure!(policy == Some(json!("keep")), "{policy:?}");
        }
        let base = built(cluster, &format!("{KUSTOMIZE}/base")).await?;
        ensure!(base.len() > 20);
        pretty_equal(&sorted(rendered), &sorted(base))
    })
}

fn pretty_equal(left: &[Value], right: &[Value]) -> Result<()> {
    for (left, right) in left.iter().zip(right) {
        ensure!(left == right, "{left:#} is not {right:#}");
    }
    ensure!(left.len() == right.len(), "{} objects, and {}", left.len(), right.len());
    Ok(())
}

#[test]
fn a_providers_values_are_its_overlays_settings() -> Result<()> {
    beside_others(async |scene| {
        let cluster = scene.testbed.cluster();
        let helm = Helm::of(cluster).await?;
        for provider in CLOUDS {
            let values = format!("{CHART}/providers/{provider}.yaml");
            let rendered = helm.rendered(&["--no-hooks", "--values", &values]).await?;
            let overlay = built(cluster, &format!("{KUSTOMIZE}/overlays/{provider}")).await?;
            ensure!(data(&rendered, "ConfigMap")? == data(&overlay, "ConfigMap")?, "{provider}");
            let mut credentials = data(&overlay, "Secret")?.clone();
            // There so that the Secret is not empty.
            credentials.remove("CLOUD_PROVIDER");
            ensure!(data(&rendered, "Secret")? == &credentials, "{provider}");
        }
        // As cloud-api-adaptor's own chart calls it.
        let alias = helm.rendered(&["--no-hooks", "--set", "provider=ibmcloudpowervs"]).await?;
        ensure!(data(&alias, "ConfigMap")?["CLOUD_PROVIDER"] == "ibmcloud-powervs");
        Ok(())
    })
}

#[test]
fn wrong_values_are_refused_by_their_name() -> Result<()> {
    beside_others(async |scene| {
        let helm = Helm::of(scene.testbed.cluster()).await?;
        let long = format!("peerPodConfig.name={}", "x".repeat(41));
        // helm names each wrong value. Of several values of one key it sees the last.
        for values in [
            &[
                ("provider=awz", "at '/provider': value must be one of"),
                ("operator.replicas=many", "at '/operator/replicas': got string, want integer"),
                (
                    "operator.image.digest=sha256:0123",
                    "at '/operator/image/digest': 'sha256:0123' does not match",
                ),
                (
                    "operator.image.repository=a@sha256:0",
                    "at '/operator/image/repository': 'a@sha256:0' does not match",
                ),
                ("image.name=a@sha256:0", "at '/image/name': 'a@sha256:0' does not match"),
                ("peerPodConfig.name=My_Config", "at '/peerPodConfig/name': 'My_Config' does not match"),
                ("guard.action=Never", "at '/guard/action': value must be one of 'Warn', 'Deny', 'None'"),
                ("secrets.mode=new", "at '/secrets/mode': value must be one of 'create', 'reference'"),
                ("limit=-1", "at '/limit'"),
                ("operator.replica=1", "'replica' not allowed"),
                (
                    "operator.imagePullSecrets={a}",
                    "at '/operator/imagePullSecrets/0': got string, want object",
                ),
                (
                    "peerPodConfig.spec.limitt=3",
                    "at '/peerPodConfig/spec': additional properties 'limitt' not allowed",
                ),
                (
                    "peerPodConfig.spec.nodeSelector.pool=null",
                    "at '/peerPodConfig/spec/nodeSelector/pool': got null, want string",
                ),
                (
                    "peerPodConfig.spec.labelSelector.matchLabels.pool=null",
                    "at '/peerPodConfig/spec/labelSelector/matchLabels/pool': got null, want string",
                ),
                (
                    "providerSecrets.vsphere.GOVC_PASSWORD=815",
                    "at '/providerSecrets/vsphere/GOVC_PASSWORD': got number, want null or string",
                ),
                ("providerConfigs.amazon.A=b", "'amazon' not allowed"),
                ("providerConfigs.aws.TAGS.a=b", "at '/providerConfigs/aws/TAGS'"),
                // 2^53: a float has no odd number beyond it.
                (
                    "providerConfigs.aws.AWS_REGION=9007199254740992",
                    "at '/providerConfigs/aws/AWS_REGION': maximum",
                ),
                ("webhook.replicas=0", "at '/webhook/replicas': minimum"),
                ("daemonset.updateStrategy.maxSurge=3000000000", "at '/daemonset/updateStrategy/maxSurge'"),
                ("drain.timeout=soon", "at '/drain/timeout'"),
                ("operator.leaseName=mine", "at '/operator/leaseName': value must be one of"),
                (
                    "commonLabels.app\\.kubernetes\\.io/part-of=mine",
                    "at '/commonLabels/app.kubernetes.io~1part-of': false schema",
                ),
                (
                    "operator.podLabels.app\\.kubernetes\\.io/name=mine",
                    "at '/operator/podLabels/app.kubernetes.io~1name': false schema",
                ),
                (
                    "metrics.alerts.labels.app\\.kubernetes\\.io/name=mine",
                    "at '/metrics/alerts/labels/app.kubernetes.io~1name': false schema",
                ),
            ][..],
            &[
                (&*long, "at '/peerPodConfig/name': maxLength"),
                ("drain.timeout=500ms", "at '/drain/timeout'"),
            ],
            &[
                ("image.name=reg:5000/caa:v1", "at '/image/name': 'reg:5000/caa:v1' does not match"),
                ("image.tag=@sha256:0", "at '/image/tag': '@sha256:0' does not match"),
                (
                    "daemonset.updateStrategy.maxUnavailable=150%",
                    "at '/daemonset/updateStrategy/maxUnavailable'",
                ),
            ],
            &[("drain.timeout=0m 0s", "at '/drain/timeout'")],
            &[("drain.timeout=30h", "at '/drain/timeout'")],
            &[("drain.timeout=24h 1s", "at '/drain/timeout'")],
            &[("drain.timeout=1m1m", "at '/drain/timeout'")],
        ] {
            let options: Vec<_> = values.iter().flat_map(|(value, _)| ["--set", *value]).collect();
            let refusal = helm.rendered(&options).await.err().with_context(|| format!("{values:?}"))?;
            let refusal = format!("{refusal:#}");
            for (value, told) in values {
                ensure!(refusal.contains(told), "{value}: {refusal}");
            }
        }
        // `--set` has no fractions.
        let fraction = "providerConfigs.docker.DOCKER_API_VERSION=1.50";
        let refusal = helm.rendered(&["--set-json", fraction]).await.err().context("1.50 is 1.5 for helm")?;
        let told = "at '/providerConfigs/docker/DOCKER_API_VERSION': got number, want";
        ensure!(format!("{refusal:#}").contains(told), "{refusal:#}");
        Ok(())
    })
}

#[test]
fn the_files_for_ssh_become_its_secret_and_half_a_key_is_refused() -> Result<()> {
    beside_others(async |scene| {
        let helm = Helm::of(scene.testbed.cluster()).await?;
        let set = |file: &str| ["--set".to_owned(), format!("providerSecrets.libvirt.{file}=of-{file}")];
        let files = ["id_ed25519", "known_hosts", "id_rsa_pub"].map(set).concat();
        let options = ["--set", "provider=libvirt"].into_iter().chain(files.iter().map(String::as_str));
        let objects = helm.rendered(&options.collect::<Vec<_>>()).await?;
        let secret = objects.iter().find(|it| it["metadata"]["name"] == "ssh-key-secret");
        let data = secret.context("no ssh-key-secret")?["data"].as_object().context("data")?;
        ensure!(data.keys().eq(["id_ed25519", "id_rsa.pub", "known_hosts"]), "{data:?}");
        for (provider, file, told) in [
            ("byom", "id_rsa", "byom lacks id_rsa or id_rsa_pub"),
            ("byom", "id_ed25519", "byom lacks id_rsa or id_rsa_pub"),
            ("libvirt", "id_rsa_pub", "libvirt has no private key"),
        ] {
            let values = format!("provider={provider},providerSecrets.{provider}.{file}=a");
            let refusal = helm.rendered(&["--set", &values]).await.err().with_context(|| values)?;
            ensure!(format!("{refusal:#}").contains(told), "{refusal:#}");
        }
        Ok(())
    })
}

#[test]
fn a_chart_may_have_this_one_as_a_part_and_turn_it_off() -> Result<()> {
    beside_others(async |scene| {
        let helm = Helm::of(scene.testbed.cluster()).await?;
        let part =
            json!({ "name": RELEASE, "version": ">=0.0.0-0", "condition": "peerpod-operator.enabled" });
        let whole =
            json!({ "apiVersion": "v2", "name": "whole", "version": "1.0.0", "dependencies": [part] });
        let dir = helm.home.path().join("whole");
        std::fs::create_dir_all(dir.join("charts"))?;
        std::fs::write(dir.join("Chart.yaml"), whole.to_string())?;
        std::os::unix::fs::symlink(CHART, dir.join("charts").join(RELEASE))?;
        let dir = dir.to_str().context("UTF-8")?;
        for (value, parts) in [("enabled=true", true), ("enabled=false", false)] {
            let values = format!("global.a=b,peerpod-operator.{value}");
            let text = helm
                .run(&["template", "whole", dir, "--kube-version", OLDEST_KUBERNETES, "--set", &values])
                .await?;
            ensure!(text.contains("kind: Deployment") == parts, "{value}: {text}");
        }
        Ok(())
    })
}

#[test]
fn the_job_that_drains_may_take_its_timeout_and_a_minute() -> Result<()> {
    beside_others(async |scene| {
        let helm = Helm::of(scene.testbed.cluster()).await?;
        for (timeout, seconds) in [
            ("4m", 300),
            ("90s", 150),
            ("1h 08m", 4140),
            ("999m 9999s", 69_999),
            ("23h59m59s", 86_459),
            ("24h", 86_460),
        ] {
            let argument = format!("--timeout={timeout}");
            Cli::try_parse_from([RELEASE, "drain", &argument]).context("the program does not take it")?;
            let objects = helm.rendered(&["--set", &format!("drain.timeout={timeout}")]).await?;
            let job = of_kind(&objects, "Job")?;
            ensure!(job["spec"]["activeDeadlineSeconds"] == seconds, "{timeout}: {}", job["spec"]);
        }
        Ok(())
    })
}
