//! Values with nothing after their colon. helm treats them as if the user had not set them.

use anyhow::{Context as _, Result, ensure};
use peerpod_operator::api::v1alpha1::PeerPodConfig;
use serde_json::{Value, json};

use super::{CHART, Helm, theirs::installed};
use crate::{install::kustomize::data, support::beside_others};

/// Keeps only the empty values, each as null.
fn unset(values: &Value) -> Value {
    let is_empty = *values == "" || *values == json!([]) || *values == json!({});
    match values {
        _ if is_empty => Value::Null,
        Value::Object(fields) => {
            let kept = |value: &Value| value.is_object() || value.is_null();
            fields
                .iter()
                .map(|(name, value)| (name.clone(), unset(value)))
                .filter(|(_, it)| kept(it))
                .collect()
        }
        other => other.clone(),
    }
}

/// The chart's objects with these values, and helm's output.
async fn all(helm: &Helm, values: &Value) -> Result<(Vec<Value>, String)> {
    let file = helm.home.path().join("values.yaml");
    std::fs::write(&file, values.to_string())?;
    let objects = helm.rendered(&["--values", file.to_str().context("UTF-8")?]).await?;
    Ok((objects, installed(helm, values).await?))
}

#[test]
fn null_values_equal_empty_values() -> Result<()> {
    beside_others(async |scene| {
        let helm = Helm::of(scene.testbed.cluster()).await?;
        let defaults = std::fs::read_to_string(format!("{CHART}/values.yaml"))?;
        let mut nulls = unset(&serde_yaml::from_str(&defaults)?);
        ensure!(nulls["operator"].get("affinity") == Some(&Value::Null), "{nulls:#}");
        ensure!(nulls["operator"].get("replicas").is_none(), "{nulls:#}");
        nulls["peerPodConfig"]["create"] = json!(true);
        let mut plain = json!({ "peerPodConfig": { "create": true } });
        ensure!(all(&helm, &nulls).await? == all(&helm, &plain).await?, "without a provider");
        for provider in ["libvirt", "byom"] {
            for values in [&mut nulls, &mut plain] {
                values["provider"] = json!(provider);
            }
            ensure!(all(&helm, &nulls).await? == all(&helm, &plain).await?, "with the provider {provider}");
        }
        Ok(())
    })
}

#[test]
fn null_settings_and_configuration_fields_mean_the_default() -> Result<()> {
    beside_others(async |scene| {
        let helm = Helm::of(scene.testbed.cluster()).await?;
        for spec in [json!({ "admission": null }), json!({ "admission": { "runtimeClassName": null } })] {
            let values = json!({
                "provider": "libvirt",
                "providerConfigs": { "libvirt": { "LIBVIRT_CPUSET": null } },
                "peerPodConfig": { "create": true, "spec": spec },
            });
            let (objects, told) = all(&helm, &values).await?;
            ensure!(told.contains("kubectl get runtimeclass kata-remote\n"), "{told}");
            let settings = data(&objects, "ConfigMap")?;
            ensure!(settings.get("LIBVIRT_CPUSET").is_none_or(|text| text == ""), "{settings:?}");
            let config = objects.iter().find_map(|it| it["data"]["peerpodconfig.yaml"].as_str());
            let config: PeerPodConfig = serde_yaml::from_str(config.context("no PeerPodConfig")?)?;
            ensure!(config.spec.admission.runtime_class_name == "kata-remote");
        }
        Ok(())
    })
}
