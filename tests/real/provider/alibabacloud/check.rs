//! What `check` says about the operator's permissions.

use anyhow::{Result, bail, ensure};
use peerpod_operator::provider::alibabacloud::POLICY;
use peers::alibaba::{Instance, Owner, actions};
use testbed::vm_name;

use super::Cloud;
use crate::{
    provider::check::{check, outcomes},
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
            let findings: Vec<_> = report["findings"].as_array().into_iter().flatten().collect();
            let failed: Vec<_> = findings.into_iter().filter(|it| it["outcome"] == "fails").collect();
            let [failed] = failed.as_slice() else { bail!("{missing}: {report}") };
            let text = failed["text"].as_str().unwrap_or_default();
            ensure!(text.contains("Forbidden.RAM"), "{missing}: {report}");
            let is_named = match missing.as_str() {
                "ecs:DescribeInstances" => failed["subject"] == "look up VMs",
                "ecs:DescribeNetworkInterfaces" => failed["subject"] == "look up interfaces",
                "vpc:DescribeEipAddresses" => failed["subject"] == "look up addresses",
                probed => text.contains(&format!("({})", probed.split(':').next_back().unwrap_or_default())),
            };
            ensure!(is_named, "{missing}: {report}");
        }
        let left = cloud.peer.left(&id).await?;
        ensure!(left.vm && !left.deleting, "check deletes: {left:?}");
        Ok(())
    })
}
