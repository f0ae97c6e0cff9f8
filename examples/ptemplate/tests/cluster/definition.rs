//! A definition that is older than the operator.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, ResourceExt as _,
    api::{Patch, PatchParams},
};
use serde_json::json;
use stage::wait::{DEADLINE, present};

use super::{INSTALLED, MANIFESTS, SHARED, Scene, TURN, condition, install_kmm};

#[test]
fn a_definition_that_lacks_a_status_field_is_reported_as_stale() -> Result<()> {
    SHARED.test(async |stage| {
        let _turn = TURN.write().await;
        INSTALLED.get_or_try_init(|| install_kmm(stage)).await?;
        let definitions: Api<CustomResourceDefinition> = Api::all(stage.client());
        let field = "/spec/versions/0/schema/openAPIV3Schema/properties/status/properties/consumers";
        let without = json!([{ "op": "remove", "path": field }]);
        let without = Patch::<()>::Json(serde_json::from_value(without)?);
        definitions.patch("ptemplates.pt.example.com", &PatchParams::default(), &without).await?;

        let scene = Scene::new(stage).await?;
        scene.create("a", json!({})).await?;
        let status = scene.told("a", "DefinitionStale", "FieldsLacking").await?;
        let stale = status.conditions.last().context("there are conditions")?;
        let command = "the installed CRD lacks status.consumers: kubectl apply -f examples/ptemplate/manifests/crd.yaml";
        ensure!(stale.message == command, "{stale:?}");
        ensure!(condition(&status, "ConsumerApplied") == Some(("True", "AsWanted")), "{status:?}");
        scene.daemon_sets.get("a-consumer").await?;

        let file = format!("{MANIFESTS}/crd.yaml");
        let apply = ["apply", "--server-side", "--force-conflicts", "--filename", &file];
        stage.kubectl(&apply).await?;
        let consumers = scene.consumes("a").await?;
        ensure!(consumers.len() == 1, "{consumers:?}");
        let told = |it: &ptemplate::api::Ptemplate| {
            let status = it.status.as_ref();
            status.is_some_and(|status| condition(status, "DefinitionStale").is_none())
        };
        present(&scene.ptemplates, "a", "nothing is stale", DEADLINE, told).await.map(|it| drop(it.name_any()))
    })
}
