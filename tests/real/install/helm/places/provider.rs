//! The settings and the credentials of a provider.

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Secret;
use serde_json::json;

use crate::{
    install::{
        helm::{CHART, Helm},
        kustomize::data,
    },
    support::beside_others,
};

/// The Secrets of a release with these options.
async fn secrets(helm: &Helm, options: &[&str]) -> Result<Vec<Secret>> {
    let objects = helm.rendered(options).await?;
    let secrets = objects.into_iter().filter(|object| object["kind"] == "Secret");
    Ok(secrets.map(serde_json::from_value).collect::<Result<_, _>>()?)
}

#[test]
fn keys_and_certificates_end_with_a_newline_however_they_are_given() -> Result<()> {
    const TEXT: &str = "-----BEGIN-----\nA\n-----END-----";
    beside_others(async |scene| {
        let helm = Helm::of(scene.testbed.cluster()).await?;
        for text in [TEXT.to_owned(), format!("{TEXT}\n")] {
            let values = json!({ "id_rsa": text, "id_rsa_pub": text, "OTHER": "as it is" });
            let certificates = json!({ "caCert": text, "clientCert": text, "clientKey": text });
            let options = [
                "--set=provider=libvirt",
                &format!("--set-json=providerSecrets.libvirt={values}"),
                &format!("--set-json=secrets.tlsCerts={certificates}"),
            ];
            let secrets = secrets(&helm, &options).await?;
            let data: Vec<_> = secrets.into_iter().filter_map(|secret| secret.data).flatten().collect();
            ensure!(data.len() == 6, "{data:?}");
            for (key, bytes) in data {
                let expected = if key == "OTHER" { "as it is".to_owned() } else { format!("{TEXT}\n") };
                ensure!(bytes.0 == expected.as_bytes(), "{key}: {:?}", String::from_utf8(bytes.0));
            }
        }
        Ok(())
    })
}

#[test]
fn settings_are_found_under_either_name_of_a_provider() -> Result<()> {
    beside_others(async |scene| {
        let helm = Helm::of(scene.testbed.cluster()).await?;
        let all = format!("--values={CHART}/providers/ibmcloud-powervs.yaml");
        let names = ["ibmcloud-powervs", "ibmcloudpowervs"];
        for (provider, other) in [(names[0], names[1]), (names[1], names[0])] {
            let values = format!(
                "--set=provider={provider},providerConfigs.{other}.POWERVS_ZONE=there,\
                 providerSecrets.{other}.IBMCLOUD_API_KEY=key,providerConfigs.{other}.POWERVS_MEMORY=1,\
                 providerConfigs.{provider}.POWERVS_MEMORY=2"
            );
            let objects = helm.rendered(&[&all, &values]).await?;
            let settings = data(&objects, "ConfigMap")?;
            ensure!(settings["POWERVS_ZONE"] == "there" && settings["POWERVS_MEMORY"] == "2", "{settings:?}");
            ensure!(data(&objects, "Secret")?["IBMCLOUD_API_KEY"] == "a2V5");
        }
        Ok(())
    })
}
