//! An API server that refuses writes to nodes.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::{
    admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
    core::v1::Node,
};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::json;
use testbed::{
    Testbed,
    wait::{self, DEADLINE},
};

const NAME: &str = "refused-nodes";

/// Makes the API server refuse writes to the status of nodes whose names have this prefix. The node `one` is one of them.
pub async fn refuse_writes_to_nodes(testbed: &Testbed, prefix: &str, one: &str) -> Result<()> {
    let rules = json!([{
        "apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["nodes/status"],
    }]);
    let admission = "admissionregistration.k8s.io/v1";
    let metadata = json!({ "name": NAME });
    let expression = format!("!object.metadata.name.startsWith('{prefix}')");
    let spec = json!({
        "matchConstraints": { "resourceRules": rules },
        "validations": [{ "expression": expression, "message": "not this one" }],
    });
    let binding = json!({ "policyName": NAME, "validationActions": ["Deny"] });
    testbed
        .apply(NAME, &[
            json!({ "apiVersion": admission, "kind": "ValidatingAdmissionPolicy", "metadata": metadata, "spec": spec }),
            json!({ "apiVersion": admission, "kind": "ValidatingAdmissionPolicyBinding", "metadata": metadata, "spec": binding }),
        ])
        .await?;
    let nodes: Api<Node> = Api::all(testbed.client());
    let nothing = Patch::Merge(json!({ "status": { "phase": null } }));
    wait::eventually("the API server refuses writes to nodes", DEADLINE, async || {
        let refusal = nodes.patch_status(one, &PatchParams::default(), &nothing).await.err();
        let refusal = refusal.context("it was accepted")?.to_string();
        ensure!(refusal.contains("not this one"), "{refusal}");
        Ok(())
    })
    .await
}

/// Makes the API server accept these writes again.
pub async fn take_writes_to_nodes(testbed: &Testbed) -> Result<()> {
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(testbed.client());
    bindings.delete(NAME, &DeleteParams::default()).await?;
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(testbed.client());
    policies.delete(NAME, &DeleteParams::default()).await?;
    Ok(())
}
