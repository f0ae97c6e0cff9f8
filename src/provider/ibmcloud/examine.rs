//! The examination of a region, before a VM must be deleted there.

use std::time::Duration;

use operator_kit::Message;
use tokio::time::timeout;

use super::{ACTIONS, IbmCloud, Instance, MOST_READ};
use crate::provider::{
    Error, ErrorClass, Finding, Listed, POD_VM, Provider as _,
    finding::{DELETE, LOOK_UP, counted, ensure_answered},
};

const LOOK_UP_TAGS: &str = "look up tags";

/// How long the tags may take. `check` ends the whole examination after 20 s, and would lose what was found out until then.
const PATIENCE: Duration = Duration::from_secs(8);

impl IbmCloud {
    /// Gets a token, and lists what deletions and the sweep may list.
    pub(super) async fn examination(&self) -> Result<Vec<Finding>, Error> {
        let subjects = [LOOK_UP, LOOK_UP_TAGS, DELETE];
        self.api.examine(&subjects, async || self.examined_instances().await).await
    }

    async fn examined_instances(&self) -> Result<Vec<Finding>, Error> {
        let (mut all, mut pod_vms, mut ids) = (0, 0, Vec::new());
        let count = |instances: Vec<Instance>| {
            all += instances.len();
            for instance in instances.into_iter().filter(|instance| self.sight.counts(instance)) {
                pod_vms += 1;
                ids.extend((ids.len() < MOST_READ).then_some(instance.id));
            }
            Ok(false)
        };
        let listed = self.pages("listing the instances", count).await;
        let read = match listed {
            Ok(()) => self.reads_one_of(&ids).await,
            Err(error) => Err(error),
        };
        let place = self.sight.place();
        let look_up = match ensure_answered(read)? {
            Err(error) => Finding::tried(LOOK_UP, Err(error)),
            Ok(true) => {
                let shown = counted(pod_vms, "instance");
                Finding::tried(LOOK_UP, Ok(format!("VPC shows {shown} named {POD_VM}…{place}")))
            }
            Ok(false) if pod_vms > 0 => {
                let text = format!(
                    "VPC lists {} named {POD_VM}…{place} and shows none of them by itself: the credentials may lack {}, or these instances have \
                     just gone: check again",
                    counted(pod_vms, "instance"),
                    ACTIONS[0]
                );
                Finding::tried(LOOK_UP, Err(Error::new(ErrorClass::Unauthorized, Message::public(text))))
            }
            Ok(false) => {
                let text = format!(
                    "VPC shows {}, and none named {POD_VM}…{place}: it hides what the credentials may not see, so they may lack {} or {}",
                    counted(all, "instance"),
                    ACTIONS[0],
                    ACTIONS[1]
                );
                Finding::untried(LOOK_UP, text)
            }
        };
        let why = format!("VPC tells only at a deletion whether the credentials have {}", ACTIONS[2]);
        Ok(vec![look_up, self.examined_tags().await, Finding::untried(DELETE, why)])
    }

    /// Whether the sweep can list.
    async fn examined_tags(&self) -> Finding {
        let mut tagged = 0;
        let count = &mut |page: Vec<Listed>| tagged += page.iter().filter(|vm| !vm.tags.is_empty()).count();
        let listed = timeout(PATIENCE, self.list(count)).await.unwrap_or_else(|_| {
            let text = format!("Global Search did not answer within {PATIENCE:?}");
            Err(Error::new(ErrorClass::Transient, Message::public(text)))
        });
        if listed.is_ok() && tagged == 0 {
            let text =
                format!("Global Search shows no tag of a pod VM, so the credentials may lack {}", ACTIONS[3]);
            return Finding::untried(LOOK_UP_TAGS, text);
        }
        let shown = counted(tagged, "instance");
        let shown = listed.map(|()| format!("Global Search shows tags of {shown} named {POD_VM}…"));
        let advice = "deletions for PeerPods do not need it: see IBMCLOUD_GLOBAL_SEARCH_ENDPOINT";
        Finding::tried(LOOK_UP_TAGS, shown.map_err(|error| error.advising(advice)))
    }
}
