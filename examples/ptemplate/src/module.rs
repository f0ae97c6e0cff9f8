//! The Module by which KMM loads the kernel module *(no client)*.

use kube::CustomResource;
use operator_kit::crd::Crds;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::{api::Ptemplate, owned::metadata};

/// KMM's definitions.
pub const KMM: Crds =
    Crds { group: "kmm.sigs.x-k8s.io", install: "install the operator Kernel Module Management" };

/// KMM's Module. Its spec is a document: of KMM's many fields this operator needs a few, and the others are KMM's to change.
#[derive(CustomResource, Clone, Debug, Deserialize, Serialize)]
#[kube(group = "kmm.sigs.x-k8s.io", version = "v1beta1", kind = "Module", namespaced, schema = "disabled")]
pub struct ModuleSpec {
    /// Its fields.
    #[serde(flatten)]
    pub fields: Map<String, Value>,
}

/// The Module of a Ptemplate, with the same name.
pub fn module(ptemplate: &Ptemplate) -> Module {
    let spec = &ptemplate.spec;
    let mut parameters = vec![format!("max_dev={}", spec.maxdev)];
    parameters.extend(spec.defaultmsg.iter().map(|message| format!("default_msg={message}")));
    // One image for each kernel: KMM puts the node's version in.
    let image = "quay.io/chrisp262/pt-char-dev:${KERNEL_FULL_VERSION}-sb";
    let container = json!({
        "imagePullPolicy": "Always", "modprobe": { "moduleName": "ptemplate_char_dev", "parameters": parameters },
        "kernelMappings": [{ "regexp": "^.+$", "containerImage": image }],
    });
    let mut fields = Map::from_iter([
        ("devicePlugin".to_owned(), json!({ "container": { "image": spec.deviceplugin } })),
        ("moduleLoader".to_owned(), json!({ "container": container })),
        ("selector".to_owned(), json!(spec.selector)),
    ]);
    fields.extend(spec.pull_secret().map(|secret| ("imageRepoSecret".to_owned(), json!(secret))));
    Module { metadata: metadata(ptemplate, ""), spec: ModuleSpec { fields } }
}
