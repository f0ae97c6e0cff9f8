//! The scenarios.

use std::{collections::HashSet, time::Duration};

use futures::{
    FutureExt,
    future::{BoxFuture, join_all},
};
use jiff::{SignedDuration, Timestamp};
use tokio::time::{sleep, timeout};

use super::{Behavior, Cannot, Example, Kind, Left, Trial};
use crate::provider::{Accepted, Claim, Error, ErrorClass, OwnVm, Resource, Stage, Vm, ownership};

/// How long a cloud may take for what it accepted.
const PATIENCE: Duration = Duration::from_secs(30);

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(50);

/// So long a cancelled call was under way.
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
    async fn a_running_vm_goes_with_all_that_is_its_own(trial: &Trial<'_>) -> Result<(), Cannot> {
        let vm = trial.make(Kind::Running, "runs").await?;
        trial.reap(&vm, "runs").await
    }

    async fn a_stopped_vm_goes_with_all_that_is_its_own(trial: &Trial<'_>) -> Result<(), Cannot> {
        let vm = trial.make(Kind::Stopped, "off").await?;
        trial.reap(&vm, "off").await
    }

    async fn a_vm_that_is_gone_is_not_found(trial: &Trial<'_>) -> Result<(), Cannot> {
        let vm = trial.make(Kind::Running, "gone").await?;
        trial.peer.remove(&vm).await?;
        trial.vanishes(&vm).await
    }

    async fn a_vm_that_goes_between_its_proof_and_its_deletion_is_deleted(trial: &Trial<'_>) -> Result<(), Cannot> {
        let vm = trial.make(Kind::Running, "races").await?;
        let own = trial.prove(&vm, "races").await?;
        trial.peer.remove(&vm).await?;
        match trial.provider.delete(&own).await {
            Err(error) if error.class != ErrorClass::NotFound => return Err(error.into()),
            _ => {}
        }
        trial.vanishes(&vm).await
    }

    async fn twenty_deletions_of_one_vm_at_once_delete_it(trial: &Trial<'_>) -> Result<(), Cannot> {
        let vm = trial.make(Kind::Running, "many").await?;
        let own = trial.prove(&vm, "many").await?;
        let deleted = join_all((0..20).map(|_| trial.provider.delete(&own))).await;
        for refused in deleted.into_iter().filter_map(Result::err) {
            // Another one may be at it.
            let may = matches!(refused.class, ErrorClass::NotFound | ErrorClass::Transient | ErrorClass::Refused);
            ensure(may, || format!("{:?}: {}", refused.class, refused.message.for_log()))?;
        }
        trial.finish(&vm, "many").await
    }

    async fn a_deletion_that_is_finished_later_is_waited_for(trial: &Trial<'_>) -> Result<(), Cannot> {
        let vm = trial.make(Kind::Running, "later").await?;
        trial.behave(Behavior::DeletesLater, &vm).await?;
        let own = trial.prove(&vm, "later").await?;
        trial.provider.delete(&own).await?;
        let shown = trial.describe(&vm).await?;
        ensure(shown.stage == Stage::Leaving, || format!("it is shown as {:?}", shown.stage))?;
        trial.provider.delete(&own).await?;
        ensure(trial.describe(&vm).await.is_ok(), || "it counts as absent while it is there".to_owned())?;
        trial.behave(Behavior::Well, &vm).await?;
        trial.vanishes(&vm).await
    }

    async fn a_throttled_call_says_how_long_to_wait(trial: &Trial<'_>) -> Result<(), Cannot> {
        let vm = trial.make(Kind::Running, "busy").await?;
        trial.behave(Behavior::Throttled, &vm).await?;
        let ErrorClass::Throttled { retry_after } = trial.refused(&vm).await?.class else {
            return Err("the call was not throttled".into());
        };
        trial.behave(Behavior::Well, &vm).await?;
        // Until then the operator makes no call.
        sleep(retry_after).await;
        trial.reap(&vm, "busy").await
    }

    async fn refused_credentials_prove_nothing_and_right_ones_delete(trial: &Trial<'_>) -> Result<(), Cannot> {
        let vm = trial.make(Kind::Running, "denied").await?;
        let own = trial.prove(&vm, "denied").await?;
        trial.behave(Behavior::Unauthorized, &vm).await?;
        for refused in [trial.refused(&vm).await?, trial.kept(&own).await?] {
            let told = refused.message.for_log();
            ensure(refused.class == ErrorClass::Unauthorized, || format!("{:?}: {told}", refused.class))?;
        }
        trial.behave(Behavior::Well, &vm).await?;
        trial.reap(&vm, "denied").await
    }

    async fn a_list_names_every_pod_vm_or_fails(trial: &Trial<'_>) -> Result<(), Cannot> {
        let mut examples = Vec::new();
        for _ in 0..3 {
            examples.push(trial.make(Kind::Running, "listed").await?);
        }
        let mut listed = HashSet::new();
        trial.provider.list(&mut |page| listed.extend(page.into_iter().map(|it| (it.kind, it.id)))).await?;
        for vm in &examples {
            let id = trial.id(vm)?;
            ensure(listed.contains(&(Resource::Vm, id.to_string())), || format!("{id} is not listed"))?;
        }
        trial.behave(Behavior::CutsListsOff, &examples[0]).await?;
        let cut_off = trial.provider.list(&mut |_| {}).await;
        trial.behave(Behavior::Well, &examples[0]).await?;
        ensure(cut_off.is_err(), || "a list that was cut off counts as whole".to_owned())?;
        for vm in &examples {
            trial.reap(vm, "listed").await?;
        }
        Ok(())
    }

    async fn only_the_vm_of_the_pod_is_proven(trial: &Trial<'_>) -> Result<(), Cannot> {
        let limit = trial.peer.cloud().name_limit;
        for (kind, pod) in [(Kind::Foreign, "mine"), (Kind::Running, "yours")] {
            let vm = trial.make(kind, pod).await?;
            let described = trial.describe(&vm).await?;
            ensure(ownership::verify(described, "mine", limit).is_err(), || format!("{} is proven", vm.name))?;
            ensure(trial.peer.left(&vm).await?.vm, || format!("{} is gone", vm.name))?;
            trial.peer.remove(&vm).await?;
        }
        Ok(())
    }

    async fn what_remains_of_a_vm_is_found_and_deleted(trial: &Trial<'_>) -> Result<(), Cannot> {
        let vm = trial.make(Kind::Remains, "left").await?;
        let shown = trial.describe(&vm).await?;
        ensure(matches!(shown.stage, Stage::Remains(_)), || format!("it is shown as {:?}", shown.stage))?;
        trial.reap(&vm, "left").await
    }

    async fn a_deletion_that_half_succeeds_is_finished_by_the_next(trial: &Trial<'_>) -> Result<(), Cannot> {
        let vm = trial.make(Kind::Running, "half").await?;
        let own = trial.prove(&vm, "half").await?;
        trial.behave(Behavior::HoldsBelongings, &vm).await?;
        if trial.provider.delete(&own).await.is_ok() {
            // Its belongings go after it.
            let remains = trial.remains(&vm, "half").await?.ok_or("nothing was held")?;
            trial.kept(&remains).await?;
        }
        ensure(trial.describe(&vm).await.is_ok(), || "what is left of it is not found".to_owned())?;
        trial.behave(Behavior::Well, &vm).await?;
        trial.reap(&vm, "half").await
    }

    async fn a_deletion_that_is_cancelled_can_be_repeated(trial: &Trial<'_>) -> Result<(), Cannot> {
        let vm = trial.make(Kind::Running, "cancelled").await?;
        let own = trial.prove(&vm, "cancelled").await?;
        trial.behave(Behavior::Hangs, &vm).await?;
        let cancelled = timeout(CANCELLED_AFTER, trial.provider.delete(&own)).await;
        ensure(cancelled.is_err(), || format!("it did not hang: {cancelled:?}"))?;
        trial.behave(Behavior::Well, &vm).await?;
        trial.finish(&vm, "cancelled").await
    }

    async fn an_identifier_with_a_scope_is_asked_for_there(trial: &Trial<'_>) -> Result<(), Cannot> {
        let vm = trial.make(Kind::InAnotherScope, "far").await?;
        ensure(trial.id(&vm)?.scope().is_some(), || "its identifier has no scope".to_owned())?;
        trial.reap(&vm, "far").await
    }

    async fn a_young_vm_is_absent_only_when_the_cloud_says_so_twice(trial: &Trial<'_>) -> Result<(), Cannot> {
        if !trial.peer.cloud().settles_late {
            return Err(Cannot::Here("it settles at once"));
        }
        let vm = trial.make(Kind::Running, "young").await?;
        trial.behave(Behavior::NotYetShown, &vm).await?;
        let missed = trial.refused(&vm).await?.class;
        let ErrorClass::Unsettled { look_after } = missed else { return Err(format!("{missed:?}").into()) };
        trial.behave(Behavior::Well, &vm).await?;
        sleep(look_after).await;
        trial.reap(&vm, "young").await?;

        let vm = trial.make(Kind::Running, "young").await?;
        trial.peer.remove(&vm).await?;
        trial.vanishes(&vm).await
    }

    async fn a_users_data_survives(trial: &Trial<'_>) -> Result<(), Cannot> {
        let vm = trial.make(Kind::WithUserData, "data").await?;
        let own = trial.prove(&vm, "data").await?;
        trial.provider.delete(&own).await?;
        trial.vanishes(&vm).await?;
        let left = trial.peer.left(&vm).await?;
        ensure(left == Left { user_data: true, ..Left::default() }, || format!("{left:?}"))
    }
}

impl Trial<'_> {
    async fn make(&self, kind: Kind, pod: &str) -> Result<Example, Cannot> {
        self.peer.make(kind, pod).await
    }

    async fn behave(&self, behavior: Behavior, vm: &Example) -> Result<(), Cannot> {
        self.peer.behave(behavior, vm).await
    }

    /// Asks as for a PeerPod that was recorded and deleted just now.
    async fn ask(&self, vm: &Example) -> Result<Result<Vm, Error>, Cannot> {
        let now = Timestamp::now();
        let recorded = now - SignedDuration::from_secs(1);
        let claim = Claim { pod: None, recorded, created: recorded, deleted: Some(now) };
        Ok(self.provider.describe(&self.id(vm)?, &claim).await)
    }

    /// Asks until the cloud has settled about it.
    async fn settled(&self, vm: &Example) -> Result<Result<Vm, Error>, Cannot> {
        loop {
            match self.ask(vm).await? {
                Err(Error { class: ErrorClass::Unsettled { look_after }, .. }) => sleep(look_after).await,
                answer => return Ok(answer),
            }
        }
    }

    async fn describe(&self, vm: &Example) -> Result<Vm, Cannot> {
        Ok(self.settled(vm).await??)
    }

    /// The error of a question that must fail.
    async fn refused(&self, vm: &Example) -> Result<Error, Cannot> {
        match self.ask(vm).await? {
            Ok(shown) => Err(format!("it is shown as {shown:?}").into()),
            Err(error) => Ok(error),
        }
    }

    /// The error of a deletion that must fail.
    async fn kept(&self, own: &OwnVm) -> Result<Error, Cannot> {
        match self.provider.delete(own).await {
            Ok(Accepted { .. }) => Err("it was deleted".into()),
            Err(error) => Ok(error),
        }
    }

    async fn prove(&self, vm: &Example, pod: &str) -> Result<OwnVm, Cannot> {
        Ok(ownership::verify(self.describe(vm).await?, pod, self.peer.cloud().name_limit)?)
    }

    /// Deletes it, and waits until nothing is left.
    async fn reap(&self, vm: &Example, pod: &str) -> Result<(), Cannot> {
        let own = self.prove(vm, pod).await?;
        self.provider.delete(&own).await?;
        if let Some(remains) = self.remains(vm, pod).await? {
            self.provider.delete(&remains).await?;
            self.vanishes(vm).await?;
        }
        self.nothing_is_left(vm).await
    }

    /// Waits until the VM is gone. Gives what remains of it, if anything does.
    async fn remains(&self, vm: &Example, pod: &str) -> Result<Option<OwnVm>, Cannot> {
        let gone = async {
            loop {
                match self.settled(vm).await? {
                    Err(Error { class: ErrorClass::NotFound, .. }) => return Ok(None),
                    Err(error) => return Err(Cannot::from(error)),
                    Ok(Vm { stage: Stage::Present | Stage::Leaving, .. }) => sleep(PAUSE).await,
                    Ok(remains) => {
                        return Ok(Some(ownership::verify(remains, pod, self.peer.cloud().name_limit)?));
                    }
                }
            }
        };
        timeout(PATIENCE, gone).await.unwrap_or_else(|_| Err(format!("{} is still there", vm.name).into()))
    }

    /// Deletes what earlier deletions may have left.
    async fn finish(&self, vm: &Example, pod: &str) -> Result<(), Cannot> {
        match self.settled(vm).await? {
            Err(gone) if gone.class == ErrorClass::NotFound => self.nothing_is_left(vm).await,
            Err(error) => Err(error.into()),
            Ok(_) => self.reap(vm, pod).await,
        }
    }

    /// Waits until it counts as absent.
    async fn vanishes(&self, vm: &Example) -> Result<(), Cannot> {
        let absent = async {
            loop {
                match self.settled(vm).await? {
                    Err(Error { class: ErrorClass::NotFound, .. }) => return Ok(()),
                    Err(error) => return Err(Cannot::from(error)),
                    Ok(_) => sleep(PAUSE).await,
                }
            }
        };
        timeout(PATIENCE, absent).await.unwrap_or_else(|_| Err(format!("{} is still there", vm.name).into()))
    }

    async fn nothing_is_left(&self, vm: &Example) -> Result<(), Cannot> {
        let left = self.peer.left(vm).await?;
        ensure(left == Left::default(), || format!("{left:?}"))
    }
}

fn ensure(holds: bool, otherwise: impl FnOnce() -> String) -> Result<(), Cannot> {
    if holds { Ok(()) } else { Err(otherwise().into()) }
}
