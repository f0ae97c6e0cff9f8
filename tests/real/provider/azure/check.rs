//! What `check` says about the operator's rights.

use std::fs;

use anyhow::{Result, ensure};
use peers::azure::{ACTIONS, ASK_FOR_RIGHTS, Principal, Vm};
use serde_json::{Value, json};
use testbed::{Settings, vm_name};

use super::Stand;
use crate::{
    provider::check::{check, findings},
    support::run,
};

const ROLE: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/provider/azure/role.json"));

/// Fails unless `check` finds nothing wrong.
pub(super) async fn works(
    azure: &Stand,
    what: &str,
    settings: &Settings,
    environment: &[(&str, &str)],
) -> Result<()> {
    let (output, cloud) = check(azure.dir.path(), settings, environment).await?;
    let works = findings(&cloud).iter().filter(|(outcome, _)| outcome == "works").count();
    ensure!(output.status.success() && works == 3, "{what}: {cloud}");
    Ok(())
}

#[test]
fn the_documented_role_is_what_these_tests_grant() -> Result<()> {
    let role: Value = serde_json::from_str(ROLE)?;
    let actions: Vec<_> = ACTIONS.into_iter().chain([ASK_FOR_RIGHTS]).collect();
    assert_eq!(role["Actions"], json!(actions));
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/src/providers/azure.md"))?;
    ensure!(
        page.contains(ROLE),
        "docs/src/providers/azure.md has another role than src/provider/azure/role.json"
    );
    Ok(())
}

#[test]
fn check_names_the_one_permission_that_is_missing() -> Result<()> {
    run(async {
        let azure = Stand::start().await?;
        azure.peer.make(&Vm::named(&vm_name("web"))).await?;
        works(&azure, "the role", &azure.settings(), &[]).await?;
        for missing in ACTIONS {
            let rest: Vec<_> =
                ACTIONS.into_iter().chain([ASK_FOR_RIGHTS]).filter(|it| *it != missing).collect();
            azure.peer.principal(&Principal::operator(&rest)).await?;
            let (output, cloud) = check(azure.dir.path(), &azure.settings(), &[]).await?;
            assert_eq!(output.status.code(), Some(3), "{missing}: {cloud}");
            let named = |(outcome, text): &(String, String)| outcome == "fails" && text.contains(missing);
            ensure!(findings(&cloud).iter().any(named), "{missing}: {cloud}");
        }
        azure.peer.principal(&Principal::operator(&ACTIONS)).await?;
        let (output, cloud) = check(azure.dir.path(), &azure.settings(), &[]).await?;
        let untried =
            |(outcome, text): &(String, String)| outcome == "untried" && text.contains(ASK_FOR_RIGHTS);
        ensure!(output.status.success() && findings(&cloud).iter().any(untried), "{cloud}");
        ensure!(!azure.requests().contains(&"DELETE".to_owned()), "check deletes");
        Ok(())
    })
}
