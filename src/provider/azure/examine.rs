//! The examination of a resource group, before a VM must be deleted there.

use hyper::Method;

use super::{
    Azure,
    answer::{Page, Permission, accepted_of_settings},
};
use crate::provider::{
    Error, Finding,
    finding::{DELETE, LOOK_UP, ensure_rights, look_up},
    http::examine_token,
};

/// The version of the API for permissions.
const AUTHORIZATION: &str = "2022-04-01";

/// What the question takes.
const ASK: &str = "Microsoft.Authorization/permissions/read";

/// The custom role of the documentation.
const ROLE: &str = include_str!("role.json");

impl Azure {
    /// Gets a token, lists the group as the sweep does, and asks for the rights in the group.
    pub(super) async fn examination(&self) -> Result<Vec<Finding>, Error> {
        examine_token(&self.api, "Azure", async || {
            Ok(vec![
                Finding::tried(LOOK_UP, look_up(self, "the resource group has", "VM").await?),
                match self.roles().await {
                    Ok(roles) => Finding::tried(DELETE, judged(&roles)),
                    Err(unknown) => {
                        Finding::untried(DELETE, format!("check asks for the rights by {ASK}: {unknown}"))
                    }
                },
                Finding::untried("locks", "Azure tells only at a deletion that a lock forbids it"),
            ])
        })
        .await
    }

    /// Asks what the credentials may do in the group of the settings.
    async fn roles(&self) -> Result<Vec<Permission>, Error> {
        let id = format!("{}/providers/microsoft.authorization/permissions", self.group()?);
        let reply = self.call("asking for the rights", Method::GET, &id, AUTHORIZATION).await?;
        Ok(accepted_of_settings(reply)?.json::<Page<Permission>>()?.value)
    }
}

/// What deletions need, and the list of the sweep: the actions of the role, but for the question itself.
fn needed() -> Vec<&'static str> {
    ROLE.split('"').filter(|text| text.starts_with("Microsoft.") && *text != ASK).collect()
}

/// Whether these roles together allow what is needed.
fn judged(roles: &[Permission]) -> Result<String, Error> {
    let needed = needed();
    ensure_rights(&needed, |right| roles.iter().any(|role| role.allows(right)))?;
    Ok(format!("the credentials have the {} rights that deletions and the sweep need", needed.len()))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn all_actions_of_the_role_are_examined_or_tried() {
        let role: Value = serde_json::from_str(ROLE).unwrap();
        let examined: Vec<_> = needed().into_iter().chain([ASK]).collect();
        assert_eq!(role["Actions"], json!(examined));
    }
}
