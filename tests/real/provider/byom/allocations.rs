//! The pool's own record of the machines that Pods have.

use anyhow::{Context as _, Result, ensure};
use futures::future::{join, try_join_all};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use peerpod_operator::{
    NAMESPACE,
    provider::{Claim, ErrorClass, InstanceId, Provider, byom::CLOUD, cloud::RecordedPlace},
};
use testbed::byom_pool::POOL;

use super::{ABSENT_FOR_NOW, Stand, claim, reap};
use crate::support::without_operator;

#[test]
fn no_allocation_is_lost_where_twenty_write_the_pool_while_twenty_machines_return() -> Result<()> {
    const COUNT: u8 = 20;
    without_operator(async |testbed| {
        let dir = tempfile::tempdir()?;
        let stand = Stand::start(testbed, dir.path(), 3 * COUNT).await?;
        let pods = |prefix: &'static str| (0..COUNT).map(move |number| format!("{prefix}-{number}"));
        let mut old = Vec::new();
        for pod in pods("old") {
            old.push((stand.pool.allocate(&pod).await?, pod));
        }
        let provider = stand.settings().open_in(testbed.client(), None)?;
        let reaped = try_join_all(old.iter().map(|(address, pod)| reap(&*provider, address, pod)));
        let allocated = try_join_all(pods("new").map(async |pod| stand.pool.allocate(&pod).await));
        let (reaped, allocated) = join(reaped, allocated).await;
        reaped?;
        let content = stand.pool.content().await?;
        let mut expected: Vec<_> = pods("new").zip(allocated?).map(|(pod, address)| (address, pod)).collect();
        expected.sort();
        let found: Vec<_> = content.allocated.clone().into_iter().collect();
        ensure!(found == expected && content.allocations == expected.len(), "{found:?}, not {expected:?}");
        let mut available = content.available.clone();
        available.sort();
        available.dedup();
        ensure!(available.len() == usize::from(2 * COUNT) + 1, "{content:?}");
        ensure!(content.version == 1 + 3 * i64::from(COUNT), "a writer wrote twice: {}", content.version);
        Ok(())
    })
}

#[test]
fn a_pool_that_is_another_one_or_does_not_know_the_machine_proves_nothing() -> Result<()> {
    without_operator(async |testbed| {
        let dir = tempfile::tempdir()?;
        let stand = Stand::start(testbed, dir.path(), 1).await?;
        let objects: Api<ConfigMap> = Api::namespaced(testbed.client(), NAMESPACE);
        let id = InstanceId::of(&CLOUD, &stand.address())?;
        let class = async |provider: &dyn Provider| -> Option<ErrorClass> {
            provider.describe(&id, &claim("web")).await.err().map(|error| error.class)
        };
        let provider = stand.settings().open_in(testbed.client(), None)?;
        let uid = provider.identity().await?.context("a ConfigMap has a UID")?;
        assert_eq!(class(&*provider).await, Some(ABSENT_FOR_NOW));
        let far = InstanceId::of(&CLOUD, "10.9.8.7")?;
        let unknown = provider.describe(&far, &claim("web")).await.err().context("it is described")?;
        assert_eq!(unknown.class, ErrorClass::Invalid);

        // A node's clock may be ahead. Only if another PeerPod records the machine, it is a later Pod's for certain.
        let refused = Some(ErrorClass::Refused);
        for (ahead, expected, if_contested) in
            [(5, None, None), (60, refused, refused), (600, refused, Some(ABSENT_FOR_NOW))]
        {
            let since = Timestamp::now() + SignedDuration::from_secs(ahead);
            stand.pool.give("web-0123456789abcdef", &stand.address(), "web", since).await?;
            assert_eq!(class(&*provider).await, expected, "{ahead}");
            let contested = Claim { contested: true, ..claim("web") };
            let described = provider.describe(&id, &contested).await;
            assert_eq!(
                described.err().map(|error| error.class),
                if_contested,
                "{ahead}, recorded by another"
            );
        }

        // Another ConfigMap replaces the pool. In it the machine is available.
        let recorded = || Some(RecordedPlace::former(POOL, Some(&uid)));
        let known = stand.settings().open_in(testbed.client(), recorded())?;
        objects.delete(POOL, &DeleteParams::default()).await?;
        assert_eq!(class(&*known).await, Some(ErrorClass::Invalid), "there is no pool");
        stand.pool.create(&[stand.address()]).await?;
        assert_eq!(class(&*known).await, Some(ErrorClass::Transient), "it is another pool");
        let mut wrong = stand.settings();
        wrong.config_map.insert("POOL_NAMESPACE".to_owned(), "default".to_owned());
        let wrong = wrong.open_in(testbed.client(), None)?;
        assert_eq!(class(&*wrong).await, Some(ErrorClass::Invalid), "there is no pool in that namespace");
        let mut object = objects.get(POOL).await?;
        object.data = Some([("allocation-state".to_owned(), "{}".to_owned())].into());
        objects.replace(POOL, &PostParams::default(), &object).await?;
        assert_eq!(class(&*provider).await, Some(ErrorClass::Invalid), "it is no pool");
        ensure!(stand.told()?.is_none());
        Ok(())
    })
}
