//! What `check` says about the operator's permissions.

use anyhow::{Result, ensure};
use peerpod_operator::provider::alibabacloud::POLICY;
use peers::alibaba::{Instance, Owner, actions};
use testbed::vm_name;

use super::Cloud;
use crate::{
    provider::check::{check, findings, outcomes},
    support::run,
};

#[test]
fn check_names_the_one_permission_that_is_missing_and_changes_nothing() -> Result<()> {
    run(async {
        let cloud = Cloud::start().await?;
        let id = cloud.peer.make(&Instance::named(&vm_name("web"))).await?;
        let (output, report) = check(cloud.dir.path(), &cloud.settings(), &[]).await?;
        let works = ["works"; 5].into_iter().chain(["untried"; 5]);
        ensure!(output.status.success() && outcomes(&report).into_iter().eq(works), "{report}");
        let all = actions(POLICY)?;
        ensure!(all.len() == 9, "{all:?}");
        for missing in &all {
            let rest: Vec<_> = all.iter().map(String::as_str).filter(|action| action != missing).collect();
            cloud.peer.owner(&Owner::operator(&rest)).await?;
            let (output, report) = check(cloud.dir.path(), &cloud.settings(), &[]).await?;
            assert_eq!(output.status.code(), Some(3), "{missing}: {report}");
            let failed: Vec<_> =
                findings(&report).into_iter().filter(|(outcome, _)| outcome == "fails").collect();
            ensure!(failed.len() == 1 && failed[0].1.contains("Forbidden.RAM"), "{missing}: {report}");
        }
        let left = cloud.peer.left(&id).await?;
        ensure!(left.vm && !left.deleting, "check deletes: {left:?}");
        Ok(())
    })
}
