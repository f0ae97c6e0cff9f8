//! Each cloud's lists of pod VMs and of their remains.

use std::collections::HashSet;

use anyhow::{Context as _, Result, ensure};
use jiff::{SignedDuration, Timestamp};
use peerpod_operator::provider::{
    Cloud, InstanceId, Listed, PowerState, Provider, Resource, VmRef, alibabacloud,
    contract::{Behavior, Cannot, Example, Kind},
    gcp,
};
use peers::{
    alibaba::{Alibaba, Feature, Instance, REGION},
    gcp::{ComputeEngine, Instance as Compute, OTHER_ZONE, PERMISSIONS},
};
use testbed::{
    Settings,
    contract::Played,
    vm_name,
    wait::{self, DEADLINE},
};

use super::own;
use crate::support::{run, without_operator};

/// The tag that the peers give every VM, as cloud-api-adaptor does by TAGS.
const TAG: (&str, &str) = ("cluster", "test");

/// Facts that a cloud's list may have about a VM besides identifier and name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fact {
    /// When it was made.
    Created,
    /// Whether it runs.
    Power,
    /// That it is being deleted.
    Leaving,
    /// Its tags.
    Tags,
}

const ALL: [Fact; 4] = [Fact::Created, Fact::Power, Fact::Leaving, Fact::Tags];

async fn list(provider: &dyn Provider) -> Result<Vec<Listed>> {
    let mut listed = Vec::new();
    provider.list(&mut |page| listed.extend(page)).await?;
    Ok(listed)
}

/// The VM with this identifier. Fails unless there is exactly one.
fn vm<'a>(listed: &'a [Listed], cloud: &Cloud, id: &str) -> Result<&'a Listed> {
    let id = InstanceId::of(cloud, id)?;
    let mut found = listed.iter().filter(|it| it.kind == Resource::Vm && it.id == id.as_str());
    let vm = found.next().with_context(|| format!("{id} is not in {listed:#?}"))?;
    ensure!(found.next().is_none() && vm.vm.is_none(), "{listed:#?}");
    Ok(vm)
}

fn made<T>(made: Result<T, Cannot>) -> Result<T> {
    made.map_err(|cannot| anyhow::anyhow!("{cannot}"))
}

/// Lists a VM that runs, one that is off, and one that is being deleted. Fails unless the list has exactly these facts. Returns the
/// cloud for further tests.
async fn lists_vms(cloud: &str, facts: &[Fact]) -> Result<Played> {
    lists_vms_of(Played::start(cloud, None).await?, facts).await
}

/// The same for a cloud that was started.
async fn lists_vms_of(played: Played, facts: &[Fact]) -> Result<Played> {
    let says = |fact| facts.contains(&fact);
    let (peer, provider) = (&played.peer, played.peer.open()?);
    let runs = made(peer.make(Kind::Running, "web").await)?;
    let state = async |vm_of: &Example| {
        let listed = list(&*provider).await?;
        let vm = vm(&listed, peer.cloud(), &vm_of.id)?;
        ensure!(vm.name.starts_with("podvm-web-"), "{vm:#?}");
        Ok((vm.state, vm.created, vm.tags.clone()))
    };
    let (power, created, tags) = state(&runs).await?;
    ensure!(
        power == if says(Fact::Power) { PowerState::Running } else { PowerState::Unknown },
        "it is {power:?}"
    );
    let age = created.map(|created| Timestamp::now().duration_since(created).abs());
    ensure!(age.is_some() == says(Fact::Created), "made at {created:?}");
    // Some clouds give the time only to the minute.
    ensure!(age.is_none_or(|age| age < SignedDuration::from_mins(5)), "made at {created:?}");
    let is_tagged = tags.iter().any(|(key, value)| (&**key, &**value) == TAG);
    ensure!(is_tagged == says(Fact::Tags) && (is_tagged || tags.is_empty()), "{tags:?}");
    match peer.make(Kind::Stopped, "web").await {
        Err(Cannot::Here(_)) => {}
        off => {
            let power = state(&made(off)?).await?.0;
            let expected = if says(Fact::Power) { PowerState::Stopped } else { PowerState::Unknown };
            ensure!(power == expected, "one that is off is {power:?}");
        }
    }
    if says(Fact::Leaving) {
        made(peer.behave(Behavior::DeletesLater, &runs).await)?;
        provider.delete(&own(&*provider, peer.cloud(), &runs.id, "web").await?).await?;
        let power = state(&runs).await?.0;
        ensure!(power == PowerState::Leaving, "one that is being deleted is {power:?}");
        made(peer.behave(Behavior::Well, &runs).await)?;
    }
    Ok(played)
}

/// Lists the remains of a VM. All of them must refer to it in this way.
async fn lists_what_is_left(
    played: &Played,
    kinds: &[Resource],
    refer: impl Fn(&Example) -> VmRef,
) -> Result<()> {
    let left = made(played.peer.make(Kind::Remains, "old").await)?;
    let provider = played.peer.open()?;
    // The VM disappears a moment after its deletion was accepted. A list of several pages can miss something meanwhile.
    wait::eventually("what is left of the VM is listed, and the VM is not", DEADLINE, async || {
        let listed = list(&*provider).await?;
        let of_it = listed.iter().filter(|it| it.vm == Some(refer(&left)));
        let found: HashSet<_> = of_it.map(|it| it.kind).collect();
        ensure!(found == kinds.iter().copied().collect(), "{left:?} left {listed:#?}");
        ensure!(listed.iter().all(|it| it.kind != Resource::Vm || it.name != left.name), "{listed:#?}");
        Ok(())
    })
    .await
}

#[test]
fn aws_lists_vms_and_what_bears_their_identifiers() -> Result<()> {
    run(async {
        let aws = lists_vms("aws", &ALL).await?;
        let kinds = [Resource::Address, Resource::Interface];
        lists_what_is_left(&aws, &kinds, |vm| VmRef::Id(vm.id.clone())).await
    })
}

#[test]
fn azure_lists_vms_without_their_power_and_what_bears_their_names() -> Result<()> {
    run(async {
        let azure = lists_vms("azure", &[Fact::Created, Fact::Leaving, Fact::Tags]).await?;
        let kinds = [Resource::Disk, Resource::Interface, Resource::Address];
        lists_what_is_left(&azure, &kinds, |vm| VmRef::Name(vm.name.clone())).await
    })
}

#[test]
fn gcp_lists_vms() -> Result<()> {
    run(async { lists_vms("gcp", &ALL).await.map(drop) })
}

#[test]
fn ibmcloud_lists_vms_with_the_tags_of_global_search() -> Result<()> {
    run(async { lists_vms("ibmcloud", &ALL).await.map(drop) })
}

#[test]
fn powervs_lists_vms_without_tags() -> Result<()> {
    run(async { lists_vms("ibmcloud-powervs", &[Fact::Created, Fact::Power, Fact::Leaving]).await.map(drop) })
}

#[test]
fn alibabacloud_lists_vms_and_addresses_that_bear_their_identifiers() -> Result<()> {
    run(async {
        let alibaba = lists_vms("alibabacloud", &ALL).await?;
        lists_what_is_left(&alibaba, &[Resource::Address], |vm| VmRef::Id(vm.id.clone())).await
    })
}

#[test]
fn byom_lists_allocations_which_say_nothing_of_power() -> Result<()> {
    without_operator(async |testbed| {
        let byom = Played::start("byom", Some(testbed)).await?;
        lists_vms_of(byom, &[Fact::Created]).await.map(drop)
    })
}

#[test]
fn docker_lists_containers_with_their_labels() -> Result<()> {
    // Docker removes a container at once.
    run(async { lists_vms("docker", &[Fact::Created, Fact::Power, Fact::Tags]).await.map(drop) })
}

#[test]
fn vsphere_lists_vms_without_tags_and_tasks() -> Result<()> {
    run(async { lists_vms("vsphere", &[Fact::Created, Fact::Power]).await.map(drop) })
}

#[test]
fn libvirt_lists_domains_without_their_age() -> Result<()> {
    run(async { lists_vms("libvirt", &[Fact::Power]).await.map(drop) })
}

#[test]
fn gcp_lists_vms_of_one_name_in_two_zones_by_paths_that_delete_each_alone() -> Result<()> {
    run(async {
        let dir = tempfile::tempdir()?;
        let engine = ComputeEngine::start(dir.path()).await?;
        let account = engine.account("operator@peer-pods", &PERMISSIONS, engine.address()).await?;
        let provider = Settings::gcp(engine.address(), Some(account)).open()?;
        let (name, other) = (vm_name("web"), vm_name("web"));
        let here = Compute::running(&name);
        let there = Compute { zone: OTHER_ZONE, status: "TERMINATED", ..here };
        for instance in [here, there, Compute::running(&other)] {
            engine.make(&instance).await?;
        }
        let listed = list(&*provider).await?;
        let ids: HashSet<_> = listed.iter().map(|it| (it.id.clone(), it.state)).collect();
        let expected = [
            (here.path(), PowerState::Running),
            (there.path(), PowerState::Stopped),
            (other, PowerState::Running),
        ];
        ensure!(ids == HashSet::from(expected), "{listed:#?}");

        provider.delete(&own(&*provider, &gcp::CLOUD, &there.path(), "web").await?).await?;
        wait::eventually("the VM goes", DEADLINE, async || {
            ensure!(!engine.state(&there).await?.instance, "it is there");
            Ok(())
        })
        .await?;
        ensure!(engine.state(&here).await?.instance, "the VM in the other zone is gone, too");
        // Now only one VM has the name.
        vm(&list(&*provider).await?, &gcp::CLOUD, &name).map(drop)
    })
}

#[test]
fn alibabacloud_lists_interfaces_that_are_left_and_addresses_that_name_nothing() -> Result<()> {
    run(async {
        let dir = tempfile::tempdir()?;
        let alibaba = Alibaba::start(dir.path(), alibabacloud::POLICY).await?;
        let provider = Settings::alibabacloud(&alibaba, REGION).open()?;
        let name = vm_name("web");
        let instance = Instance { features: &[Feature::External], ..Instance::named(&name) };
        let id = alibaba.make(&instance).await?;
        let listed = list(&*provider).await?;
        ensure!(listed.len() == 1, "what is in use is its VM's: {listed:#?}");
        alibaba.keep_interface(&id).await?;
        alibaba.remove(&id, false).await?;
        let left = list(&*provider).await?;
        let refs: HashSet<_> = left.iter().map(|it| (it.kind, vm_id(it), it.created.is_some())).collect();
        // cloud-api-adaptor does not name an address.
        let expected = [(Resource::Interface, Some(&*id), true)];
        ensure!(refs == HashSet::from(expected), "{left:#?}");
        Ok(())
    })
}

fn vm_id(listed: &Listed) -> Option<&str> {
    match &listed.vm {
        Some(VmRef::Id(id)) => Some(id),
        _ => None,
    }
}
