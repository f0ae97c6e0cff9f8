//! Pod deleted, garbage collector, operator.

use anyhow::{Result, ensure};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, ResourceExt as _};
use peers::libvirt::{BASE_VOLUME, POD_VM_DESCRIPTION, POOL};
use testbed::{vm_name, wait};

use crate::support::{alone, beside_others};

#[test]
fn a_deleted_pods_machine_is_deleted_with_its_own_volumes_only() -> Result<()> {
    beside_others(async |scene| {
        let pod = scene.pods.run("web").await?;
        let name = vm_name("web");
        let host = scene.host;
        let root = host.volume(&format!("{name}-root.qcow2"), "qcow2", "").await?;
        let cloudinit = host.volume(&format!("{name}-cloudinit.iso"), "raw", "").await?;
        let data = host.volume(&format!("{}-customers-root.qcow2", scene.namespace), "qcow2", "").await?;
        let domain = host.start_domain(&name, POD_VM_DESCRIPTION, &[&root, &cloudinit, &data]).await?;
        let peerpod = scene.caa.record(&pod, "libvirt", &domain.uuid.to_string()).await?;

        scene.pods.delete("web").await?;
        scene.released(peerpod.metadata.name.as_deref().unwrap()).await?;
        // The PeerPod is gone, so its machine was gone before.
        assert!(!host.virsh().domains().await?.contains(&name));
        let volumes = host.virsh().volumes(POOL).await?;
        assert!(!volumes.contains(&root.name) && !volumes.contains(&cloudinit.name), "{volumes:?}");
        assert!(volumes.contains(&data.name) && volumes.iter().any(|it| it == BASE_VOLUME), "{volumes:?}");
        Ok(())
    })
}

#[test]
fn a_deletion_costs_one_write_to_the_api_server() -> Result<()> {
    beside_others(async |scene| {
        let vm = scene.pod_with_vm("web").await?;
        scene.pods.delete("web").await?;
        scene.released(&vm.name()).await?;
        scene.operator_catches_up().await?;
        let writes = scene.writes()?;
        assert_eq!(writes.len(), 1, "{writes:#?}");
        assert_eq!((writes[0].verb.as_str(), writes[0].resource.as_str()), ("patch", "peerpods"));
        assert_eq!((writes[0].name.clone(), writes[0].code), (vm.name(), 200));
        Ok(())
    })
}

#[test]
fn the_operator_touches_nothing_when_cloud_api_adaptor_does_its_job() -> Result<()> {
    alone(async |alone| {
        let scene = alone.scene();
        let vm = scene.pod_with_vm("web").await?;
        scene.caa.stop_vm(&vm, scene.host).await?;
        scene.pods.delete("web").await?;
        scene.released(&vm.name()).await?;

        scene.operator_catches_up().await?;
        let metrics = scene.operator.metrics().await?;
        let calls = metrics.sum("peerpod_operator_provider_calls_total", &[("call", "delete")]);
        assert!(
            (calls - 1.0).abs() < 0.5,
            "one machine was the operator's to delete, and it deleted {calls}"
        );
        assert_eq!(scene.writes()?, []);
        Ok(())
    })
}

#[test]
fn a_namespace_is_deleted_with_its_running_machines() -> Result<()> {
    beside_others(async |scene| {
        let names: Vec<_> = (0..5).map(|number| format!("web-{number}")).collect();
        let vms = try_join_all(names.iter().map(|name| scene.pod_with_vm(name))).await?;
        scene.testbed.cluster().kubectl(&["delete", "namespace", &scene.namespace, "--wait=false"]).await?;
        let namespaces: Api<Namespace> = Api::all(scene.testbed.client());
        wait::gone(&namespaces, &scene.namespace, wait::DEADLINE).await?;
        for vm in &vms {
            scene.vanished(vm).await?;
        }
        Ok(())
    })
}

#[test]
fn both_reapers_releasing_at_once_is_no_error() -> Result<()> {
    alone(async |alone| {
        let scene = alone.scene();
        let names: Vec<_> = (0..20).map(|number| format!("web-{number}")).collect();
        let race = async |name: &String| {
            let vm = scene.pod_with_vm(name).await?;
            scene.caa.delete_machine(&vm, scene.host).await?;
            let (deleted, released) = tokio::join!(scene.pods.delete(name), scene.caa.release(&vm.peerpod));
            deleted?;
            if let Err(error) = released {
                let code = error.downcast_ref().map(|error: &kube::Error| match error {
                    kube::Error::Api(status) => status.code,
                    _ => 0,
                });
                ensure!(matches!(code, Some(404 | 422)), "{error:#}");
            }
            scene.released(&vm.name()).await
        };
        try_join_all(names.iter().map(race)).await?;
        // A reconcile is counted when it ends, after its PeerPod is gone.
        scene.operator_catches_up().await?;
        let metrics = scene.operator.metrics().await?;
        let errors = metrics.sum("peerpod_operator_reconciles_total", &[("result", "error")]);
        assert!(errors < 0.5, "{errors} reconciles failed");
        Ok(())
    })
}

#[test]
fn a_stopped_or_partly_deleted_machine_is_deleted() -> Result<()> {
    beside_others(async |scene| {
        let (off, half) = (scene.pod_with_vm("off").await?, scene.pod_with_vm("half").await?);
        let client = scene.host.client();
        client.domain_destroy(&off.machine.domain).await?;
        client.domain_destroy(&half.machine.domain).await?;
        client.volume_delete(&half.machine.root).await?;
        for (pod, vm) in [("off", &off), ("half", &half)] {
            scene.pods.delete(pod).await?;
            scene.reaped(vm).await?;
        }
        Ok(())
    })
}

#[test]
fn a_finalizer_of_another_program_stays() -> Result<()> {
    const OTHER: &str = "example.com/audit";
    beside_others(async |scene| {
        let vm = scene.pod_with_vm("web").await?;
        let add = r#"[{"op": "add", "path": "/metadata/finalizers/0", "value": "example.com/audit"}]"#;
        scene.kubectl(&["patch", "peerpod", &vm.name(), "--type=json", "--patch", add]).await?;
        scene.pods.delete("web").await?;
        let what = "the operator's finalizer is released";
        wait::present(&scene.peerpods, &vm.name(), what, wait::DEADLINE, |it| it.finalizers() == [OTHER])
            .await?;
        scene.vanished(&vm).await?;
        scene.operator_catches_up().await?;
        assert_eq!(scene.writes()?.len(), 1);
        scene.caa.release(&vm.peerpod).await?;
        scene.released(&vm.name()).await
    })
}
