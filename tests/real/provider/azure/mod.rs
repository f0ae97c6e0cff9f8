//! Azure: answers that never count as absence, refusals, the operator's credentials, and a deletion by the operator.

mod check;
mod deletion;
mod doubt;
mod identity;

use anyhow::Result;
use peerpod_operator::provider::{Claim, Error, ErrorClass, InstanceId, Provider, Stage, azure::CLOUD};
use peers::{Does, azure::Azure};
use serde_json::json;
use tempfile::TempDir;
use testbed::Settings;

use super::is_doubt;

/// The start of the paths of Resource Manager.
const API: &str = "/subscriptions/";

/// Answers that look like absence, and what they mean.
const NO_ABSENCE: [(u16, &str, ErrorClass); 10] = [
    (404, "ResourceGroupNotFound", ErrorClass::Invalid),
    (404, "SubscriptionNotFound", ErrorClass::Unauthorized),
    (404, "AuthorizationFailed", ErrorClass::Unauthorized),
    (403, "AuthorizationFailed", ErrorClass::Unauthorized),
    (404, "NotFound", ErrorClass::Transient),
    (429, "RetryableError", ErrorClass::Transient),
    (404, "InvalidResourceType", ErrorClass::Invalid),
    (410, "ResourceNotFound", ErrorClass::Invalid),
    (302, "ResourceNotFound", ErrorClass::Invalid),
    (503, "ServiceUnavailable", ErrorClass::Transient),
];

struct Stand {
    dir: TempDir,
    peer: Azure,
}

impl Stand {
    async fn start() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let peer = Azure::start(dir.path()).await?;
        Ok(Self { dir, peer })
    }

    fn settings(&self) -> Settings {
        Settings::azure(&self.peer.url())
    }

    /// The provider, new each time: it has no token.
    fn open(&self) -> Result<Box<dyn Provider>> {
        Ok(self.settings().open()?)
    }

    async fn describe(&self, id: &str) -> Result<Result<Stage, Error>> {
        let described = self.open()?.describe(&InstanceId::of(&CLOUD, id)?, &Claim::default()).await;
        Ok(described.map(|vm| vm.stage))
    }

    async fn doubted(&self, what: &str, id: &str, class: ErrorClass) -> Result<()> {
        is_doubt(what, self.describe(id).await?, class)
    }

    /// Fails unless the VM is in doubt while requests for such a path get one of these answers.
    async fn doubts(&self, part: &'static str, id: &str) -> Result<()> {
        for (status, code, class) in NO_ABSENCE {
            self.rule(part, answer(status, refusal(code)));
            self.doubted(&format!("{status} {code} of {part}"), id, class).await?;
            self.peer.relay().forget_rules();
        }
        Ok(())
    }

    fn rule(&self, part: &'static str, does: Does) {
        self.peer.relay().rule(move |seen| seen.path.contains(part), does);
    }

    /// The requests to Resource Manager that came so far.
    fn requests(&self) -> Vec<String> {
        let seen = self.peer.relay().seen().into_iter().filter(|seen| seen.path.starts_with(API));
        seen.map(|seen| seen.method).collect()
    }

    /// The names of all resources.
    async fn names(&self) -> Result<Vec<String>> {
        let all = self.peer.resources().await?;
        Ok(all.iter().filter_map(|id| Some(id.rsplit_once('/')?.1.to_owned())).collect())
    }
}

fn answer(status: u16, body: impl Into<String>) -> Does {
    Does::Answer { status, headers: Vec::new(), body: body.into() }
}

fn refusal(code: &str) -> String {
    json!({ "error": { "code": code, "message": "no" } }).to_string()
}
