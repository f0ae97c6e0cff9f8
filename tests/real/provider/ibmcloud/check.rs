//! What `check` says about the operator's permissions.

use anyhow::{Result, ensure};
use peerpod_operator::provider::ibmcloud::ACTIONS;
use peers::ibm::{Instance, Principal};

use super::{OTHER_VM, start};
use crate::{
    provider::check::{check, findings, outcomes},
    support::run,
};

#[test]
fn check_says_which_permission_may_be_missing_and_deletes_nothing() -> Result<()> {
    run(async {
        let cloud = start().await?;
        let (output, report) = check(cloud.dir(), &cloud.settings(), &[]).await?;
        ensure!(
            output.status.success() && outcomes(&report) == ["works", "untried", "untried", "untried"],
            "{report}"
        );
        ensure!(findings(&report)[1].1.contains("is.instance.instance.list"), "{report}");
        ensure!(findings(&report)[2].1.contains("global-search-tagging.resource.read"), "{report}");
        cloud
            .peer
            .make(&Instance { old: true, tags: &["cluster:test"], ..Instance::named(OTHER_VM) })
            .await?;
        let (output, report) = check(cloud.dir(), &cloud.settings(), &[]).await?;
        ensure!(
            output.status.success() && outcomes(&report) == ["works", "works", "works", "untried"],
            "{report}"
        );
        ensure!(findings(&report)[3].1.contains("is.instance.instance.delete"), "{report}");
        cloud.peer.principal(&Principal::operator(&ACTIONS[..3])).await?;
        let (_, report) = check(cloud.dir(), &cloud.settings(), &[]).await?;
        ensure!(outcomes(&report) == ["works", "works", "fails", "untried"], "{report}");
        cloud.peer.principal(&Principal::operator(&ACTIONS[1..])).await?;
        let (_, report) = check(cloud.dir(), &cloud.settings(), &[]).await?;
        ensure!(outcomes(&report) == ["works", "fails", "works", "untried"], "{report}");
        ensure!(findings(&report)[1].1.contains(ACTIONS[0]), "{report}");
        let mut settings = cloud.settings();
        settings.secret.insert("IBMCLOUD_API_KEY".to_owned(), "another-api-key".to_owned());
        let (output, report) = check(cloud.dir(), &settings, &[]).await?;
        assert_eq!(output.status.code(), Some(3), "{report}");
        ensure!(findings(&report)[0].1.contains("BXNIM0415E"), "{report}");
        ensure!(!cloud.requests().contains(&"DELETE".to_owned()), "check deletes");
        Ok(())
    })
}
