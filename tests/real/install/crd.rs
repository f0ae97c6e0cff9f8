//! The custom resource, as cloud-api-adaptor and people meet it.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use kube::{CustomResourceExt as _, ResourceExt as _};
use peerpod_operator::{api::v1alpha1::PeerPodConfig, install};
use serde_json::json;
use testbed::{
    Operator, OperatorOptions, Settings, Testbed, peerpod_object,
    wait::{self, DEADLINE},
};

use crate::{
    cli::apply::start,
    install::kustomize::allow_removal,
    support::{PROGRAM, Scene, beside_others, without_operator},
};

async fn refused(scene: &Scene<'_>, arguments: &[&str], words: &str) -> Result<()> {
    let error =
        scene.kubectl(arguments).await.err().with_context(|| format!("{arguments:?} was accepted"))?;
    assert!(format!("{error:#}").contains(words), "{words:?} is not in: {error:#}");
    Ok(())
}

fn configuration(name: &str, spec: &serde_json::Value) -> serde_json::Value {
    json!({
        "apiVersion": "confidentialcontainers.org/v1alpha1", "kind": "PeerPodConfig",
        "metadata": { "name": name }, "spec": spec,
    })
}

#[test]
fn an_object_of_cloud_api_adaptor_is_accepted_with_every_field() -> Result<()> {
    beside_others(async |scene| {
        let pod = scene.pods.run("web").await?;
        let object = peerpod_object(&pod, "libvirt", "0dd2f0c5-6a3d-44a7-9b5e-2f7a6c2f9a11");
        let dir = tempfile::tempdir()?;
        let file = dir.path().join("peerpod.json");
        fs::write(&file, object.to_string())?;
        let file = file.to_str().context("UTF-8")?;
        let created = scene.kubectl(&["create", "--validate=strict", "--output=json", "-f", file]).await?;
        let created: serde_json::Value = serde_json::from_str(&created)?;
        assert_eq!(created["spec"], object["spec"]);
        assert_eq!(created["metadata"]["finalizers"], object["metadata"]["finalizers"]);
        assert_eq!(created["metadata"]["ownerReferences"], object["metadata"]["ownerReferences"]);

        for instance in [
            "",
            "17",
            "/subscriptions/1/resourceGroups/A/providers/Microsoft.Compute/virtualMachines/podvm-web-1a2b3c4d",
        ] {
            scene.caa.record(&pod, "azure", instance).await?;
        }
        Ok(())
    })
}

#[test]
fn the_record_of_a_machine_cannot_be_changed_or_be_nonsense() -> Result<()> {
    beside_others(async |scene| {
        let pod = scene.pods.run("web").await?;
        let name = scene.caa.record(&pod, "libvirt", "17").await?.name_any();
        let patch = |patch: &'static str| ["patch", "peerpod", "", "--type=merge", "--patch", patch];
        for (change, words) in [
            (r#"{"spec": {"instanceID": "18"}}"#, "spec cannot be changed"),
            (r#"{"spec": {"instanceID": null}}"#, "spec cannot be changed"),
            (r#"{"spec": {"cloudProvider": "aws"}}"#, "spec cannot be changed"),
            (r#"{"spec": null}"#, "spec cannot be removed"),
        ] {
            let mut arguments = patch(change);
            arguments[2] = &name;
            refused(scene, &arguments, words).await?;
        }
        let spaced = scene.caa.record(&pod, "lib virt", "x").await.err().context("accepted")?;
        assert!(format!("{spaced:#}").contains("white space"), "{spaced:#}");
        // What would steer a terminal, or turn the text around.
        for invisible in ["x\u{9b}2J", "x\u{1b}", "x\u{202e}", "x\u{a0}"] {
            let error = scene.caa.record(&pod, "libvirt", invisible).await.err().context("accepted")?;
            assert!(format!("{error:#}").contains("control characters"), "{error:#}");
        }
        let long = scene.caa.record(&pod, "libvirt", &"x".repeat(513)).await.err().context("accepted")?;
        assert!(format!("{long:#}").contains("512"), "{long:#}");
        Ok(())
    })
}

#[test]
fn the_extended_resource_of_a_configuration_cannot_be_changed() -> Result<()> {
    beside_others(async |scene| {
        let config = configuration("config", &json!({ "limit": 1 }));
        let dir = tempfile::tempdir()?;
        let file = dir.path().join("config.json");
        fs::write(&file, config.to_string())?;
        scene.kubectl(&["create", "-f", file.to_str().context("UTF-8")?]).await?;
        for (change, words) in [
            (
                r#"{"spec": {"admission": {"extendedResource": "a.example/vm"}}}"#,
                "extendedResource cannot change",
            ),
            (r#"{"spec": null}"#, "spec cannot be removed"),
        ] {
            let arguments = ["patch", "peerpodconfig", "config", "--type=merge", "--patch", change];
            refused(scene, &arguments, words).await?;
        }
        scene.kubectl(&["delete", "peerpodconfig", "config"]).await.map(drop)
    })
}

#[test]
fn a_number_of_a_rolling_update_that_the_operator_cannot_read_is_refused() -> Result<()> {
    beside_others(async |scene| {
        let dir = tempfile::tempdir()?;
        let file = dir.path().join("config.json");
        let create = ["create", "--dry-run=server", "-f", file.to_str().context("UTF-8")?];
        for field in ["maxSurge", "maxUnavailable"] {
            let write = |amount: serde_json::Value| {
                let strategy = json!({ "rollingUpdate": { (field): amount } });
                let spec = json!({ "adaptor": { "updateStrategy": strategy } });
                fs::write(&file, configuration("config", &spec).to_string())
            };
            for good in [json!(0), json!(i32::MAX), json!("10%")] {
                write(good)?;
                scene.kubectl(&create).await?;
            }
            for bad in [json!(-1), json!(3_000_000_000_i64)] {
                write(bad)?;
                refused(scene, &create, &format!("{field} must be a whole number")).await?;
            }
        }
        Ok(())
    })
}

#[test]
fn what_the_objects_of_a_configuration_could_not_have_is_refused_in_it() -> Result<()> {
    beside_others(async |scene| {
        let dir = tempfile::tempdir()?;
        let file = dir.path().join("config.json");
        let create = ["create", "--dry-run=server", "-f", file.to_str().context("UTF-8")?];
        let write =
            |name: &str, spec: serde_json::Value| fs::write(&file, configuration(name, &spec).to_string());
        let resources = |amount: &serde_json::Value| json!({ "limits": { "memory": amount }, "requests": { "cpu": "10m" } });
        for good in [json!("1Gi"), json!("1.5G"), json!("1e9"), json!("+.5Gi"), json!(1_000_000)] {
            let spec = json!({ "adaptor": { "resources": resources(&good) }, "admission": { "resources": resources(&good) } });
            write("config", spec)?;
            scene.kubectl(&create).await?;
        }
        for part in ["adaptor", "admission"] {
            for bad in ["1GB", "1 Gi", "1Gi\n", "ten", ""] {
                write("config", json!({ (part): { "resources": resources(&json!(bad)) } }))?;
                refused(scene, &create, &format!("spec.{part}.resources.limits.memory")).await?;
            }
        }
        write(&"a".repeat(41), json!({}))?;
        refused(scene, &create, "40 characters").await
    })
}

#[test]
fn the_labels_of_two_appliers_do_not_mix_in_a_selector() -> Result<()> {
    beside_others(async |scene| {
        let dir = tempfile::tempdir()?;
        let file = dir.path().join("config.json");
        for (applier, label) in [("first", "a"), ("second", "b")] {
            let labels = json!({ (label): "" });
            let spec = json!({ "nodeSelector": labels, "labelSelector": { "matchLabels": labels } });
            fs::write(&file, configuration("mixed", &spec).to_string())?;
            let manager = format!("--field-manager={applier}");
            let apply = ["apply", "--server-side", "--force-conflicts", &manager, "-f"];
            scene.kubectl(&[&apply[..], &[file.to_str().context("UTF-8")?]].concat()).await?;
        }
        let spec = scene.kubectl(&["get", "peerpodconfig", "mixed", "--output=jsonpath={.spec}"]).await?;
        let spec: serde_json::Value = serde_json::from_str(&spec)?;
        assert_eq!(spec["nodeSelector"], json!({ "b": "" }));
        assert_eq!(spec["labelSelector"], json!({ "matchLabels": { "b": "" } }));
        scene.kubectl(&["delete", "peerpodconfig", "mixed"]).await.map(drop)
    })
}

#[test]
fn people_see_provider_instance_state_and_age() -> Result<()> {
    beside_others(async |scene| {
        let pod = scene.pods.run("web").await?;
        let name = scene.caa.record(&pod, "nonsense", "i-1").await?.name_any();
        scene.pods.delete("web").await?;
        scene.held(&name, "UnknownProvider").await?;
        let table = scene.kubectl(&["get", "peerpods"]).await?;
        let mut rows = table.lines().map(|line| line.split_ascii_whitespace().collect::<Vec<_>>());
        assert_eq!(rows.next().context(table.clone())?, ["NAME", "PROVIDER", "INSTANCE", "STATE", "AGE"]);
        assert_eq!(rows.next().context(table.clone())?[..4], [&name, "nonsense", "i-1", "UnknownProvider"]);
        let explained = scene.kubectl(&["explain", "peerpod.spec.instanceID"]).await?;
        let words: Vec<_> = explained.split_ascii_whitespace().collect();
        assert!(words.join(" ").contains("libvirt domain's UUID"), "{explained}");
        Ok(())
    })
}

#[test]
fn the_whole_installation_is_accepted_without_a_warning() -> Result<()> {
    beside_others(async |scene| installation_is_accepted(scene.testbed).await)
}

/// Fails unless every object of the installation is accepted, each field of it, without a warning.
pub async fn installation_is_accepted(testbed: &Testbed) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let options = install::Options::default();
    let mut objects: Vec<_> =
        install::objects(&options)?.into_iter().map(|manifest| manifest.object).collect();
    objects.push(install::samples::peer_pod_config(&options)?);
    for (number, object) in objects.iter().enumerate() {
        fs::write(dir.path().join(format!("{number}.json")), object.to_string())?;
    }
    let dir = dir.path().to_str().context("UTF-8")?;
    let dry = ["apply", "--server-side", "--force-conflicts", "--dry-run=server"];
    let strict = ["--validate=strict", "--warnings-as-errors", "--filename", dir];
    let arguments: Vec<_> = dry.into_iter().chain(strict).collect();
    testbed.cluster().kubectl(&arguments).await?;
    Ok(())
}

#[test]
fn a_definition_that_is_not_installed_is_named_and_waited_for() -> Result<()> {
    without_operator(async |testbed: &Testbed| {
        let cluster = testbed.cluster();
        allow_removal(cluster).await?;
        let names = ["peerpods", "peerpodconfigs"].map(|it| format!("{it}.confidentialcontainers.org"));
        for name in &names {
            cluster.kubectl(&["delete", "crd", name, "--timeout=180s"]).await?;
        }
        let dir = tempfile::tempdir()?;
        let settings = Settings::libvirt("test+unix:///default?socket=/nowhere");
        let mut options = OperatorOptions::new(PROGRAM, dir.path().join("operator"), settings);
        options.arguments =
            ["--leader-elect=false", "--controllers=peerpod,peerpodconfig"].map(Into::into).into();
        let operator = Operator::spawn(testbed, &options).await?;
        for name in &names {
            let missing = format!("the CRD {name} is not installed: kubectl apply -f manifests/crd");
            wait::eventually("the operator names the CRD", DEADLINE, async || {
                ensure!(operator.log()?.contains(&missing), "{}", operator.log_tail());
                Ok(())
            })
            .await?;
        }
        let log = operator.log()?;
        ensure!(!log.contains("404 page not found"), "{log}");

        let drained = start(testbed, &["drain"])?.wait_with_output().await?;
        let told = String::from_utf8(drained.stdout)?;
        ensure!(drained.status.success(), "{told}");
        for name in &names {
            ensure!(told.contains(&format!("The CRD {name} is not installed.")), "{told}");
        }
        // A definition from before there was a limit allowed longer names.
        let mut crd = serde_json::to_value(PeerPodConfig::crd())?;
        let schema = &mut crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        schema.as_object_mut().context("a schema")?.remove("x-kubernetes-validations").context("rules")?;
        let old = dir.path().join("crd.json");
        fs::write(&old, crd.to_string())?;
        cluster.kubectl(&["create", "-f", old.to_str().context("UTF-8")?]).await?;
        cluster.kubectl(&["wait", "--for=condition=Established", "--timeout=60s", "crd", &names[1]]).await?;
        let (config, name) = (dir.path().join("config.json"), "a".repeat(41));
        fs::write(&config, configuration(&name, &json!({})).to_string())?;
        cluster.kubectl(&["create", "-f", config.to_str().context("UTF-8")?]).await?;
        testbed.install_objects().await?;
        let change = ["annotate", "--namespace=default", "peerpodconfig", &name, "changed=yes"];
        cluster.kubectl(&change).await.context("an object with a longer name cannot be changed")?;
        operator.ready().await
    })
}
