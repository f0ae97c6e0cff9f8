//! Deletions by the provider and by the operator, and refusals.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use kube::ResourceExt as _;
use peerpod_operator::provider::{Claim, ErrorClass, InstanceId, Provider, Stage, azure::CLOUD};
use peers::azure::{Azure, Behavior, GROUP, OTHER_SUBSCRIPTION, SUBSCRIPTION, TENANT, Vm};
use testbed::{
    Settings, vm_name,
    wait::{self, DEADLINE},
};

use super::Stand;
use crate::{
    provider::own,
    support::{alone_beside, run},
};

/// Waits until the provider says that nothing is left.
async fn vanishes(provider: &dyn Provider, id: &str) -> Result<()> {
    let id = InstanceId::of(&CLOUD, id)?;
    wait::eventually("it is gone", DEADLINE, async || {
        let described = provider.describe(&id, &Claim::default()).await;
        ensure!(described.as_ref().is_err_and(|error| error.class == ErrorClass::NotFound), "{described:?}");
        Ok(())
    })
    .await
}

#[test]
fn a_deletion_takes_four_requests_and_one_for_a_token() -> Result<()> {
    run(async {
        let azure = Stand::start().await?;
        let name = vm_name("web");
        let id = azure.peer.make(&Vm::named(&name)).await?;
        let provider = azure.open()?;
        let accepted = provider.delete(&own(&*provider, &CLOUD, &id, "web").await?).await?;
        ensure!(!accepted.check_again_after.is_zero(), "it asks again at once");
        wait::eventually("Azure deletes it", DEADLINE, async || {
            let names = azure.names().await?;
            ensure!(names.is_empty(), "{names:?}");
            Ok(())
        })
        .await?;
        let gone = provider.describe(&InstanceId::of(&CLOUD, &id)?, &Claim::default()).await;
        ensure!(gone.is_err_and(|error| error.class == ErrorClass::NotFound));
        assert_eq!(azure.requests(), ["GET", "DELETE", "GET", "GET"]);
        let tokens = azure.peer.relay().seen().iter().filter(|seen| seen.path.ends_with("/token")).count();
        assert_eq!(tokens, 1);
        Ok(())
    })
}

#[test]
fn a_disk_that_azure_holds_is_deleted_later() -> Result<()> {
    run(async {
        let azure = Stand::start().await?;
        let (name, other) = (vm_name("web"), vm_name("web"));
        let id = azure.peer.make(&Vm::named(&name)).await?;
        azure.peer.make(&Vm::named(&other)).await?;
        azure.peer.behave(&id, Behavior::HoldsDisk).await?;
        let provider = azure.open()?;
        provider.delete(&own(&*provider, &CLOUD, &id, "web").await?).await?;
        wait::eventually("the VM is gone", DEADLINE, async || {
            ensure!(matches!(azure.describe(&id).await?, Ok(Stage::Remains(_))));
            Ok(())
        })
        .await?;
        let refused = provider.delete(&own(&*provider, &CLOUD, &id, "web").await?).await;
        ensure!(refused.as_ref().is_err_and(|error| error.class == ErrorClass::Refused), "{refused:?}");

        azure.peer.behave(&(id.replace("virtualMachines", "disks") + "-disk"), Behavior::Well).await?;
        wait::eventually("all of it is deleted", DEADLINE, async || {
            if let Ok(own) = own(&*provider, &CLOUD, &id, "web").await {
                provider.delete(&own).await?;
            }
            let names = azure.names().await?;
            ensure!(!names.iter().any(|it| it.starts_with(&name)), "{names:?}");
            Ok(())
        })
        .await?;
        vanishes(&*provider, &id).await?;
        assert_eq!(
            azure.names().await?.iter().filter(|it| it.starts_with(&other)).count(),
            4,
            "another Pod's"
        );
        Ok(())
    })
}

#[test]
fn a_locked_vm_stays_and_the_refusal_gives_the_reason() -> Result<()> {
    run(async {
        let azure = Stand::start().await?;
        let name = vm_name("web");
        let id = azure.peer.make(&Vm::named(&name)).await?;
        azure.peer.behave(&id, Behavior::Locked).await?;
        let provider = azure.open()?;
        let refused =
            provider.delete(&own(&*provider, &CLOUD, &id, "web").await?).await.err().context("deleted")?;
        ensure!(
            refused.class == ErrorClass::Refused && refused.to_string().contains("ScopeLocked"),
            "{refused}"
        );
        for private in [TENANT, SUBSCRIPTION, GROUP, "127.0.0.1", &name] {
            ensure!(!refused.to_string().contains(private), "{refused}");
        }
        Ok(())
    })
}

#[test]
fn a_vm_of_any_subscription_is_deleted_with_its_pod() -> Result<()> {
    let start = async |dir: &Path, _: &_| {
        let peer = Azure::start(&dir.join("azure")).await?;
        let settings = Settings::azure(&peer.url());
        Ok((peer, settings))
    };
    alone_beside(start, async |alone, peer| {
        let scene = alone.scene();
        let data = "data-of-web";
        let mut recorded = Vec::new();
        let pods = ["web", "far", "left"];
        for pod in pods {
            let owner = scene.pods.run(pod).await?;
            let name = vm_name(pod);
            let vm = match pod {
                "web" => Vm { data_disk: Some(data), ..Vm::named(&name) },
                "far" => Vm { subscription: OTHER_SUBSCRIPTION, ..Vm::named(&name) },
                _ => Vm { detach: true, ..Vm::named(&name) },
            };
            let id = peer.make(&vm).await?;
            if vm.detach {
                // The VM's interface with an address and its disk stay. The list does not show the disk.
                peer.remove(&id).await?;
                let disk = id.replace("virtualMachines", "disks") + "-disk";
                peer.behave(&disk, Behavior::Unlisted).await?;
            }
            recorded.push(scene.caa.record(&owner, "azure", &id).await?.name_any());
        }
        for pod in pods {
            scene.pods.delete(pod).await?;
        }
        for peerpod in recorded {
            wait::gone(&scene.peerpods, &peerpod, DEADLINE).await?;
        }
        let left = peer.resources().await?;
        let of_network = left.iter().filter(|id| id.contains("/Microsoft.Network/")).count();
        ensure!(of_network == 2 && left.len() == 3 && left.iter().any(|id| id.ends_with(data)), "{left:?}");
        Ok(())
    })
}
