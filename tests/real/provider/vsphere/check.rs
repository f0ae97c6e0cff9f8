//! What `check` says about the user's privileges.

use anyhow::{Result, ensure};
use peerpod_operator::provider::vsphere::PRIVILEGES;
use peers::vsphere::{Machine, PASSWORD, PATH, USER};
use testbed::vm_name;

use super::Stand;
use crate::{
    provider::check::{check, findings, outcomes},
    support::run,
};

#[test]
fn check_names_the_privilege_that_is_missing_and_deletes_nothing() -> Result<()> {
    run(async {
        let cloud = Stand::start().await?;
        cloud.peer.make(&Machine::named(&vm_name("web"))).await?;
        let (output, report) = check(cloud.dir.path(), &cloud.settings(), &[]).await?;
        ensure!(output.status.success() && outcomes(&report) == ["works", "works", "works"], "{report}");
        ensure!(findings(&report)[1].1.contains("1 VM named"), "{report}");
        cloud.peer.grant(USER, PATH, &PRIVILEGES[..2], true).await?;
        let (output, report) = check(cloud.dir.path(), &cloud.settings(), &[]).await?;
        ensure!(!output.status.success() && outcomes(&report) == ["works", "works", "fails"], "{report}");
        ensure!(findings(&report)[2].1.contains(PRIVILEGES[2]), "{report}");
        cloud.peer.grant(USER, PATH, &PRIVILEGES, false).await?;
        let (_, report) = check(cloud.dir.path(), &cloud.settings(), &[]).await?;
        ensure!(findings(&report)[1].1.contains("propagate"), "{report}");
        cloud.peer.user(USER, "another").await?;
        let (_, report) = check(cloud.dir.path(), &cloud.settings(), &[]).await?;
        ensure!(outcomes(&report) == ["fails", "untried", "untried"], "{report}");
        ensure!(!report.to_string().contains(PASSWORD), "{report}");
        ensure!(!cloud.methods().iter().any(|method| method.ends_with("_Task")), "check deletes");
        Ok(())
    })
}
