//! Objects with times that an API server stores but few programs can parse. Any user who may change an object may write them.

use anyhow::{Result, ensure};
use k8s_openapi::{
    NamespaceResourceScope,
    api::{apps::v1::DaemonSet, core::v1::Pod},
};
use kube::{
    Api, Client, Resource, ResourceExt as _,
    api::{GetParams, PostParams},
    core::Request,
};
use peerpod_operator::api::v1alpha1::{PeerPod, PeerPodConfig};
use serde_json::{Value, json};
use testbed::wait::{DEADLINE, eventually};

use crate::peerpodconfig::configuration::stage::{Stage, configuring};

/// Later than the operator's own timestamps can be.
const FAR: &str = "9999-12-31T00:00:00Z";

/// Makes an object's managed fields say that it was written then.
async fn write_then<K>(client: &Client, namespace: &str, name: &str) -> Result<()>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    let kind = Request::new(K::url_path(&(), Some(namespace)));
    eventually(&format!("{name} is written at {FAR}"), DEADLINE, async || {
        let read = client.request_text(kind.get(name, &GetParams::default())?).await?;
        let mut object: Value = serde_json::from_str(&read)?;
        object["metadata"]["managedFields"] = json!([{
            "manager": "somebody", "operation": "Update", "apiVersion": K::api_version(&()), "time": FAR,
            "fieldsType": "FieldsV1", "fieldsV1": { "f:metadata": { "f:labels": { "f:some": {} } } },
        }]);
        let object = serde_json::to_vec(&object)?;
        let written = client.request_text(kind.replace(name, &PostParams::default(), object)?).await?;
        ensure!(written.contains(FAR), "the API server does not keep it: {written}");
        Ok(())
    })
    .await
}

#[test]
fn objects_with_unreadable_times_delay_no_others() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 2).await?;
        let (client, namespace) = (alone.testbed.client(), alone.namespace.clone());
        let (far, waiting, config) = {
            let scene = alone.scene();
            let (far, waiting) = (scene.pod_with_vm("far").await?, scene.pod_with_vm("waiting").await?);
            scene.kubectl(&["delete", "peerpod", &waiting.name(), "--wait=false"]).await?;
            scene.held(&waiting.name(), "WaitingForPod").await?;
            let daemon_sets: Api<DaemonSet> = Api::namespaced(client.clone(), &namespace);
            let labels = json!({ "some": "app" });
            let daemon_set = serde_json::from_value(json!({
                "metadata": { "name": "far" },
                "spec": { "selector": { "matchLabels": labels }, "template": {
                    "metadata": { "labels": labels },
                    "spec": { "nodeSelector": { "no": "where" }, "containers": [{ "name": "some", "image": "some" }] },
                } },
            }))?;
            daemon_sets.create(&PostParams::default(), &daemon_set).await?;
            let configs: Api<PeerPodConfig> = Api::namespaced(client.clone(), &namespace);
            let config = PeerPodConfig::new("far", serde_json::from_value(json!({}))?);
            let config = configs.create(&PostParams::default(), &config).await?.name_any();
            (far, waiting, config)
        };

        alone.operator.kill().await?;
        for pod in ["far", "waiting"] {
            write_then::<Pod>(&client, &namespace, pod).await?;
        }
        for peerpod in [&far, &waiting] {
            write_then::<PeerPod>(&client, &namespace, &peerpod.name()).await?;
        }
        write_then::<DaemonSet>(&client, &namespace, "far").await?;
        write_then::<PeerPodConfig>(&client, &namespace, &config).await?;
        alone.operator.start_again()?;
        alone.operator.ready().await?;

        stage.configure("config", json!({ "limit": 2 })).await?;
        stage.shares(&[Some(1), Some(1)]).await?;
        let scene = alone.scene();
        scene.lives(&waiting).await?;
        let another = scene.pod_with_vm("another").await?;
        for vm in [&far, &waiting, &another] {
            let pod = &vm.peerpod.owner_references()[0].name;
            scene.kubectl(&["delete", "pod", pod, "--wait=false"]).await?;
            scene.reaped(vm).await?;
        }
        let log = scene.operator.log()?;
        ensure!(!log.contains(FAR), "{log}");
        // The next tests cannot parse these times either.
        scene.kubectl(&["delete", "daemonset/far", "peerpodconfig/far"]).await?;
        stage.clear("config").await
    })
}
