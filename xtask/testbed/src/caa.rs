//! The visible effects of cloud-api-adaptor in a cluster and on a libvirt host.

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, ResourceExt as _,
    api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams},
};
use libvirt_client::{ErrorCode, UndefineFlags};
use peerpod_operator::{api::v1alpha1::PeerPod, peerpodconfig::resources::SERVICE_ACCOUNT};
use peers::libvirt::{Host, PodVm};
use serde_json::{Value, json};

use crate::installation::Testbed;

/// The characters of Kubernetes' random names.
const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// The most characters of an object's name.
const NAME_LIMIT: usize = 253;

/// The most characters of a machine's name.
const VM_NAME_LIMIT: usize = 63;

/// Acts like cloud-api-adaptor, with its rights.
#[derive(Clone)]
pub struct Caa {
    client: Client,
}

/// A pod VM and the PeerPod that records it.
#[derive(Clone, Debug)]
pub struct Vm {
    /// Domain and volumes.
    pub machine: PodVm,
    /// The PeerPod as it was created.
    pub peerpod: PeerPod,
}

impl Vm {
    /// The PeerPod's name.
    pub fn name(&self) -> String {
        self.peerpod.name_any()
    }
}

impl Caa {
    /// Uses the ServiceAccount that the installation has for cloud-api-adaptor.
    pub async fn install(testbed: &Testbed) -> Result<Self> {
        Ok(Self { client: testbed.client_of(SERVICE_ACCOUNT).await? })
    }

    /// A Pod gets its sandbox: makes a machine, then the PeerPod that records it.
    pub async fn start_vm(&self, pod: &Pod, host: &Host) -> Result<Vm> {
        let machine = host.start_pod_vm(&vm_name(&pod.name_any())).await?;
        let peerpod = self.record(pod, "libvirt", &machine.domain.uuid.to_string()).await?;
        Ok(Vm { machine, peerpod })
    }

    /// A Pod's sandbox is stopped: deletes the machine, then releases the PeerPod.
    pub async fn stop_vm(&self, vm: &Vm, host: &Host) -> Result<()> {
        self.delete_machine(vm, host).await?;
        self.release(&vm.peerpod).await
    }

    /// The first half of [`stop_vm`](Self::stop_vm): domain first, then its volumes.
    pub async fn delete_machine(&self, vm: &Vm, host: &Host) -> Result<()> {
        let client = host.client();
        let PodVm { domain, root, cloudinit } = &vm.machine;
        client.domain_destroy(domain).await.with_context(|| format!("destroying {}", domain.name))?;
        let undefined = match client.domain_undefine(domain, UndefineFlags::NVRAM).await {
            // The test driver does not support NVRAM.
            Err(error) if error.code() == Some(ErrorCode::InvalidArg) => {
                client.domain_undefine_plain(domain).await
            }
            undefined => undefined,
        };
        undefined.with_context(|| format!("undefining {}", domain.name))?;
        for volume in [root, cloudinit] {
            client.volume_delete(volume).await.with_context(|| format!("deleting {}", volume.name))?;
        }
        Ok(())
    }

    /// Creates the PeerPod that records that this Pod's machine is that instance.
    pub async fn record(&self, pod: &Pod, provider: &str, instance: &str) -> Result<PeerPod> {
        loop {
            let created = self.create(peerpod_object(pod, provider, instance)).await;
            // The random parts of names are short: among thousands, two are often the same.
            if !created.as_ref().is_err_and(is_taken) {
                return created;
            }
        }
    }

    /// Creates this PeerPod.
    pub async fn create(&self, object: Value) -> Result<PeerPod> {
        let namespace =
            object["metadata"]["namespace"].as_str().context("a PeerPod without namespace")?.to_owned();
        let object: DynamicObject = serde_json::from_value(object)?;
        let created = self.api(&namespace).create(&PostParams::default(), &object).await;
        Ok(created.context("creating a PeerPod")?.try_parse()?)
    }

    /// Removes all finalizers of a PeerPod at once, including those of other programs.
    pub async fn release(&self, peerpod: &PeerPod) -> Result<()> {
        let patch = serde_json::from_value(json!([{ "op": "remove", "path": "/metadata/finalizers" }]))?;
        let api = self.api(&peerpod.namespace().unwrap_or_default());
        let name = peerpod.name_any();
        api.patch(&name, &PatchParams::default(), &Patch::<()>::Json(patch))
            .await
            .with_context(|| format!("releasing the PeerPod {name}"))?;
        Ok(())
    }

    fn api(&self, namespace: &str) -> Api<DynamicObject> {
        let kind = GroupVersionKind::gvk("confidentialcontainers.org", "v1alpha1", "PeerPod");
        let resource = ApiResource::from_gvk_with_plural(&kind, "peerpods");
        Api::namespaced_with(self.client.clone(), namespace, &resource)
    }
}

/// Whether the error says that an object of this name already exists.
fn is_taken(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<kube::Error>();
    matches!(error, Some(kube::Error::Api(status)) if status.is_already_exists())
}

/// The PeerPod that cloud-api-adaptor writes for a Pod: these fields and no others.
pub fn peerpod_object(pod: &Pod, provider: &str, instance: &str) -> Value {
    let (pod_name, suffix) = (pod.name_any(), format!("-resource-{}", random(ALPHABET, 5)));
    let base = &pod_name[..pod_name.len().min(NAME_LIMIT - suffix.len())];
    json!({
        "apiVersion": "confidentialcontainers.org/v1alpha1",
        "kind": "PeerPod",
        "metadata": {
            "name": format!("{base}{suffix}"),
            "namespace": pod.namespace(),
            "finalizers": ["peer.pod/finalizer"],
            "ownerReferences": [{
                "apiVersion": "v1",
                "kind": "Pod",
                "name": pod_name,
                "uid": pod.uid(),
                "controller": true,
                "blockOwnerDeletion": true,
            }],
        },
        "spec": { "cloudProvider": provider, "instanceID": instance },
    })
}

/// A machine's name for a Pod of this name, in a sandbox with a random id. It begins with a letter: the operator leaves the machine of a
/// sandbox whose eight digits are a date.
pub fn vm_name(pod: &str) -> String {
    let replaced: String = pod
        .to_lowercase()
        .chars()
        .map(|c| if c.is_ascii_lowercase() || c.is_ascii_digit() { c } else { '-' })
        .take(VM_NAME_LIMIT - "podvm--12345678".len())
        .collect();
    format!("podvm-{replaced}-{}{}", random(b"abcdef", 1), random(b"0123456789abcdef", 7))
}

fn random(alphabet: &[u8], length: usize) -> String {
    (0..length).filter_map(|_| fastrand::choice(alphabet)).map(|byte| char::from(*byte)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machines_name_is_cut_and_free_of_dots() {
        assert!(vm_name("web.A").starts_with("podvm-web-a-"));
        assert_eq!(vm_name("web").len(), "podvm-web-12345678".len());
        assert_eq!(vm_name(&"x".repeat(253)).len(), 63);
    }

    #[test]
    fn the_name_of_a_peerpod_is_the_pods_and_fits() {
        for length in [3, 238, 239, 253] {
            let pod = Pod {
                metadata: kube::api::ObjectMeta { name: Some("x".repeat(length)), ..Default::default() },
                ..Default::default()
            };
            let object = peerpod_object(&pod, "libvirt", "");
            let name = object["metadata"]["name"].as_str().unwrap();
            assert_eq!(name.len(), 253.min(length + 15), "{name}");
            assert!(name.contains("x-resource-"), "{name}");
        }
    }
}
