//! Writes that the API server refuses.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use futures::StreamExt as _;
use peerpod_operator::peerpodconfig::{
    capacity::{Capacity, Pass, Summary},
    conditions::Reason,
};
use serde_json::json;
use testbed::wait::DEADLINE;

use super::{LIST, SOON, Stage, client, node_request};
use crate::support::{
    refusal::{refuse_writes_to_nodes, take_writes_to_nodes},
    without_operator,
};

#[test]
fn unwritable_nodes_are_reported_and_do_not_delay_others() -> Result<()> {
    without_operator(async |testbed| {
        let mut stage = Stage::new(testbed).await?;
        // More nodes than a pass tries when all of them fail. All come before the good one.
        let bad: Vec<_> = (0..40).map(|number| format!("bad-{number:02}")).collect();
        for name in bad.iter().map(String::as_str).chain(["good"]) {
            stage.join(name).await?;
        }
        refuse_writes_to_nodes(testbed, "bad-", &bad[0]).await?;
        stage.want(&[json!({ "limit": 41 })])?;
        stage.advertises("good", Some("1")).await?;
        let told =
            |summaries: &Vec<Summary>| summaries.iter().any(|summary| summary.failed.len() == bad.len());
        let summaries = tokio::time::timeout(DEADLINE, stage.summaries.wait_for(told)).await??.clone();
        let finding = summaries[0].capacity();
        ensure!(finding.reason == Reason::NodeWritesFail, "{finding:?}");
        ensure!(
            finding.message.contains("bad-00") && finding.message.contains("not this one"),
            "{finding:?}"
        );
        // While many nodes fail, the operator does not ask about them again and again. The good node does not wait for them.
        let before = stage.asked(LIST)?;
        stage.reset("good", Some("0")).await?;
        let took = stage.advertises("good", Some("1")).await?;
        ensure!(took < SOON, "the good one was put right after {took:?}");
        tokio::time::sleep(Duration::from_secs(8)).await;
        let lists = stage.asked(LIST)? - before;
        ensure!((1..=12).contains(&lists), "Pods were listed {lists} times");
        take_writes_to_nodes(testbed).await?;
        for name in &bad {
            stage.advertises(name, Some("1")).await?;
        }
        for name in bad.iter().map(String::as_str).chain(["good"]) {
            stage.leave(name).await?;
        }
        Ok(())
    })
}

#[test]
fn a_surplus_on_a_node_that_refuses_writes_is_not_given_to_others() -> Result<()> {
    without_operator(async |testbed| {
        let stage = Stage::new(testbed).await?;
        for name in ["bad", "good"] {
            stage.join(name).await?;
        }
        stage.want(&[json!({ "limit": 8 })])?;
        stage.shares(&[("bad", "4"), ("good", "4")]).await?;
        refuse_writes_to_nodes(testbed, "bad", "bad").await?;
        stage.join("late").await?;
        stage.shares(&[("bad", "4"), ("good", "3"), ("late", "1")]).await?;
        take_writes_to_nodes(testbed).await?;
        stage.shares(&[("bad", "3"), ("good", "3"), ("late", "2")]).await?;
        for name in ["bad", "good", "late"] {
            stage.leave(name).await?;
        }
        Ok(())
    })
}

#[test]
fn a_node_that_took_the_place_of_the_one_meant_is_not_written_to() -> Result<()> {
    without_operator(async |testbed| {
        let stage = Stage::new(testbed).await?;
        stage.join("twin").await?;
        let (capacity, changes) = Capacity::watch(&client(testbed).await?);
        // The write is still to be done, and nothing keeps the operator from doing it.
        let is_dropped = |Pass { summaries, written, .. }: &Pass| {
            let hindered = written.failed.len() + written.contested.len();
            summaries[0].pending.len() == 1 && written.reached.is_empty() && hindered == 0
        };
        {
            // Without further changes, the part acts on its old state.
            let mut changes = std::pin::pin!(changes);
            changes.next().await.context("the first list")?;
            let pass = capacity
                .pass(&[node_request(&json!({ "limit": 2 }))?])
                .await?
                .context("all nodes were seen")?;
            ensure!(pass.written.reached == ["twin".into()], "{pass:?}");
            stage.leave("twin").await?;
            stage.join("twin").await?;
            let pass = capacity
                .pass(&[node_request(&json!({ "limit": 3 }))?])
                .await?
                .context("all nodes were seen")?;
            ensure!(is_dropped(&pass), "{pass:?}");
            stage.leave("twin").await?;
            let pass = capacity
                .pass(&[node_request(&json!({ "limit": 3 }))?])
                .await?
                .context("all nodes were seen")?;
            ensure!(is_dropped(&pass), "{pass:?}");
        }
        Ok(())
    })
}
