//! The scenarios.

use std::{collections::HashSet, time::Duration};

use futures::{
    FutureExt,
    future::{BoxFuture, join_all},
};
use tokio::time::{sleep, timeout};

use super::{
    Behavior, Cannot, Example, Kind, Left,
    trial::{Trial, ensure},
};
use crate::provider::{ErrorClass, Listed, PowerState, Resource, Stage, VmRef, ownership};

/// How long a call runs before it is cancelled.
const CANCELLED_AFTER: Duration = Duration::from_millis(100);

type Scenario = for<'a> fn(&'a Trial<'a>) -> BoxFuture<'a, Result<(), Cannot>>;

macro_rules! scenarios {
    ($($(#[doc = $doc:literal])* async fn $name:ident($trial:ident: &Trial<'_>) -> Result<(), Cannot> $body:block)*) => {
        /// Every scenario with its name.
        pub(super) const ALL: &[(&str, Scenario)] = &[$((stringify!($name), |trial| $name(trial).boxed())),*];
        $($(#[doc = $doc])* async fn $name($trial: &Trial<'_>) -> Result<(), Cannot> $body)*
    };
}

scenarios! {
    async fn a_running_vm_is_deleted_with_its_belongings(trial: &Trial<'_>) -> Result<(), Cannot> {
        let vm = trial.peer.make(Kind::Running, "runs").await?;
        trial.reap(&vm, "runs").await
    }

    async fn a_stopped_vm_is_deleted_with_its_belongings(trial: &Trial<'_>) -> Result<(), Cannot> {
        let vm = trial.peer.make(Kind::Stopped, "off").await?;
        trial.reap(&vm, "off").await
    }

    async fn a_vm_that_is_gone_is_not_found(trial: &Trial<'_>) -> Result<(), Cannot> {
        let vm = trial.peer.make(Kind::Running, "gone").await?;
        trial.peer.remove(&vm).await?;
        trial.vanishes(&vm).await
    }

    async fn a_vm_that_disappears_after_its_proof_counts_as_deleted(trial: &Trial<'_>) -> Result<(), Cannot> {
        let vm = trial.peer.make(Kind::Running, "races").await?;
        let own = trial.prove(&vm, "races").await?;
        trial.peer.remove(&vm).await?;
        match trial.provider.delete(&own).await {
            Err(error) if error.class != ErrorClass::NotFound => return Err(error.into()),
            _ => {}
        }
        trial.vanishes(&vm).await
    }

    async fn twenty_deletions_of_one_vm_at_once_delete_it(trial: &Trial<'_>) -> Result<(), Cannot> {
        let vm = trial.peer.make(Kind::Running, "many").await?;
        let own = trial.prove(&vm, "many").await?;
        let deleted = join_all((0..20).map(|_| trial.provider.delete(&own))).await;
        for refused in deleted.into_iter().filter_map(Result::err) {
            // Another of these deletions may be in progress, or done.
            let may = matches!(refused.class, ErrorClass::NotFound | ErrorClass::Transient | ErrorClass::Refused);
            ensure(may, || format!("{:?}: {}", refused.class, refused.message.for_log()))?;
        }
        trial.finish(&vm, "many").await
    }

    async fn a_deletion_that_is_finished_later_is_waited_for(trial: &Trial<'_>) -> Result<(), Cannot> {
        let vm = trial.peer.make(Kind::Running, "later").await?;
        trial.peer.behave(Behavior::DeletesLater, &vm).await?;
        let own = trial.prove(&vm, "later").await?;
        trial.provider.delete(&own).await?;
        let shown = trial.describe(&vm).await?;
        ensure(shown.stage == Stage::Leaving, || format!("it is shown as {:?}", shown.stage))?;
        trial.provider.delete(&own).await?;
        ensure(trial.describe(&vm).await.is_ok(), || "it counts as absent while it is there".to_owned())?;
        trial.peer.behave(Behavior::Well, &vm).await?;
        trial.vanishes(&vm).await
    }

    async fn a_throttled_call_works_after_the_time_that_the_cloud_named(trial: &Trial<'_>) -> Result<(), Cannot> {
        let vm = trial.peer.make(Kind::Running, "busy").await?;
        trial.peer.behave(Behavior::Throttled, &vm).await?;
        let ErrorClass::Throttled { retry_after } = trial.refused(&vm).await?.class else {
            return Err("the call was not throttled".into());
        };
        trial.peer.behave(Behavior::Well, &vm).await?;
        // Until then the operator makes no call.
        sleep(retry_after.unwrap_or_default()).await;
        trial.reap(&vm, "busy").await
    }

    async fn refused_credentials_prove_nothing_and_right_ones_delete(trial: &Trial<'_>) -> Result<(), Cannot> {
        let vm = trial.peer.make(Kind::Running, "denied").await?;
        let own = trial.prove(&vm, "denied").await?;
        trial.peer.behave(Behavior::Unauthorized, &vm).await?;
        for refused in [trial.refused(&vm).await?, trial.kept(&own).await?] {
            let told = refused.message.for_log();
            ensure(refused.class == ErrorClass::Unauthorized, || format!("{:?}: {told}", refused.class))?;
        }
        trial.peer.behave(Behavior::Well, &vm).await?;
        trial.reap(&vm, "denied").await
    }

    async fn a_list_names_every_pod_vm_or_fails(trial: &Trial<'_>) -> Result<(), Cannot> {
        let mut examples = Vec::new();
        for _ in 0..3 {
            examples.push(trial.peer.make(Kind::Running, "listed").await?);
        }
        let listed: HashSet<_> = trial.list().await?.into_iter().map(|it| (it.kind, it.id)).collect();
        for vm in &examples {
            let id = trial.id(vm)?;
            ensure(listed.contains(&(Resource::Vm, id.to_string())), || format!("{id} is not listed"))?;
        }
        trial.peer.behave(Behavior::CutsListsOff, &examples[0]).await?;
        let cut_off = trial.provider.list(&mut |_| {}).await;
        trial.peer.behave(Behavior::Well, &examples[0]).await?;
        ensure(cut_off.is_err(), || "a list that was cut off counts as whole".to_owned())?;
        for vm in &examples {
            trial.reap(vm, "listed").await?;
        }
        Ok(())
    }

    async fn a_list_says_which_vms_run(trial: &Trial<'_>) -> Result<(), Cannot> {
        let runs = trial.peer.make(Kind::Running, "power").await?;
        let off = match trial.peer.make(Kind::Stopped, "power").await {
            Err(Cannot::Here(_)) => None,
            made => Some(made?),
        };
        let listed = trial.list().await?;
        let state = |vm: &Example| {
            let id = trial.id(vm)?;
            let vm = listed.iter().find(|it| it.kind == Resource::Vm && it.id == id.as_str());
            Ok::<_, Cannot>(vm.ok_or_else(|| format!("{id} is not listed"))?.state)
        };
        let of_runs = state(&runs)?;
        ensure(matches!(of_runs, PowerState::Running | PowerState::Unknown), || format!("it is {of_runs:?}"))?;
        if let Some(off) = &off {
            let expected = if of_runs == PowerState::Unknown { of_runs } else { PowerState::Stopped };
            let of_off = state(off)?;
            ensure(of_off == expected, || format!("one that is off is {of_off:?}"))?;
            trial.reap(off, "power").await?;
        }
        trial.peer.remove(&runs).await
    }

    async fn a_list_names_the_vm_of_its_remains(trial: &Trial<'_>) -> Result<(), Cannot> {
        let vm = trial.peer.make(Kind::Remains, "traces").await?;
        let (id, listed) = (trial.id(&vm)?, trial.list().await?);
        let is_it = listed.iter().any(|it| it.kind == Resource::Vm && it.id == id.as_str());
        ensure(!is_it, || format!("{id} is listed, which is gone"))?;
        let refs = [VmRef::Id(id.to_string()), VmRef::Name(vm.name.clone())];
        let names_it = |it: &Listed| it.vm.as_ref().is_some_and(|vm| refs.contains(vm));
        ensure(listed.iter().any(names_it), || format!("nothing names {id} or {}: {listed:#?}", vm.name))?;
        trial.reap(&vm, "traces").await
    }

    async fn only_the_vm_of_the_pod_is_proven(trial: &Trial<'_>) -> Result<(), Cannot> {
        let limit = trial.peer.cloud().name_limit;
        for (kind, pod) in [(Kind::Foreign, "mine"), (Kind::Running, "yours")] {
            let vm = trial.peer.make(kind, pod).await?;
            let described = trial.describe(&vm).await?;
            ensure(ownership::verify(described, "mine", limit).is_err(), || format!("{} is proven", vm.name))?;
            ensure(trial.peer.left(&vm).await?.vm, || format!("{} is gone", vm.name))?;
            trial.peer.remove(&vm).await?;
        }
        Ok(())
    }

    async fn remains_of_a_vm_are_found_and_deleted(trial: &Trial<'_>) -> Result<(), Cannot> {
        let vm = trial.peer.make(Kind::Remains, "left").await?;
        let shown = trial.describe(&vm).await?;
        ensure(matches!(shown.stage, Stage::Remains(_)), || format!("it is shown as {:?}", shown.stage))?;
        trial.reap(&vm, "left").await
    }

    async fn a_deletion_that_half_succeeds_is_finished_by_the_next(trial: &Trial<'_>) -> Result<(), Cannot> {
        let vm = trial.peer.make(Kind::Running, "half").await?;
        let own = trial.prove(&vm, "half").await?;
        trial.peer.behave(Behavior::HoldsBelongings, &vm).await?;
        if trial.provider.delete(&own).await.is_ok() {
            // This cloud deletes the belongings after the VM.
            let remains = trial.remains(&vm, "half").await?.ok_or("nothing was held")?;
            trial.kept(&remains).await?;
        }
        ensure(trial.describe(&vm).await.is_ok(), || "what is left of it is not found".to_owned())?;
        trial.peer.behave(Behavior::Well, &vm).await?;
        trial.reap(&vm, "half").await
    }

    async fn a_deletion_that_is_cancelled_can_be_repeated(trial: &Trial<'_>) -> Result<(), Cannot> {
        let vm = trial.peer.make(Kind::Running, "cancelled").await?;
        let own = trial.prove(&vm, "cancelled").await?;
        trial.peer.behave(Behavior::Hangs, &vm).await?;
        let cancelled = timeout(CANCELLED_AFTER, trial.provider.delete(&own)).await;
        ensure(cancelled.is_err(), || format!("it did not hang: {cancelled:?}"))?;
        trial.peer.behave(Behavior::Well, &vm).await?;
        trial.finish(&vm, "cancelled").await
    }

    async fn an_identifier_with_a_scope_is_asked_for_there(trial: &Trial<'_>) -> Result<(), Cannot> {
        let vm = trial.peer.make(Kind::InAnotherScope, "far").await?;
        ensure(trial.id(&vm)?.scope().is_some(), || "its identifier has no scope".to_owned())?;
        trial.reap(&vm, "far").await
    }

    async fn a_young_vm_is_absent_only_when_the_cloud_says_so_twice(trial: &Trial<'_>) -> Result<(), Cannot> {
        if !trial.peer.cloud().settles_late {
            return Err(Cannot::Here("it settles at once"));
        }
        let vm = trial.peer.make(Kind::Running, "young").await?;
        trial.peer.behave(Behavior::NotYetShown, &vm).await?;
        let missed = trial.refused(&vm).await?.class;
        let ErrorClass::Unsettled { check_again_after } = missed else {
            return Err(format!("{missed:?}").into());
        };
        trial.peer.behave(Behavior::Well, &vm).await?;
        sleep(check_again_after).await;
        trial.reap(&vm, "young").await?;

        let vm = trial.peer.make(Kind::Running, "young").await?;
        trial.peer.remove(&vm).await?;
        trial.vanishes(&vm).await
    }

    async fn a_users_data_survives(trial: &Trial<'_>) -> Result<(), Cannot> {
        let vm = trial.peer.make(Kind::WithUserData, "data").await?;
        let own = trial.prove(&vm, "data").await?;
        trial.provider.delete(&own).await?;
        trial.vanishes(&vm).await?;
        let left = trial.peer.left(&vm).await?;
        ensure(left == Left { user_data: true, ..Left::default() }, || format!("{left:?}"))
    }
}
