//! The examination of a pool, before a machine must be returned to it.

use operator_kit::Message;

use super::Byom;
use crate::provider::{
    Error, ErrorClass, Finding,
    finding::{counted, ensure_answered},
};

impl Byom {
    /// Reads the pool, tries a write that changes nothing, and logs in to one machine.
    pub(super) async fn examination(&self) -> Result<Vec<Finding>, Error> {
        let read = match ensure_answered(self.store.read().await)? {
            Err(error) => return Ok(vec![Finding::tried("read the pool", Err(error))]),
            Ok(read) => read,
        };
        let (name, pool) = (&self.store.full_name, &read.pool);
        let contents = format!(
            "the ConfigMap {name} has {} allocated and {}",
            pool.allocations.len(),
            counted(pool.available.len(), "available machine")
        );
        let written = self.store.try_write(&read).await;
        let written = written.map(|()| format!("the ConfigMap {name} may be updated (dry run)"));
        // A machine without a Pod is disturbed least.
        let allocated = pool.allocations.iter().map(|allocation| &allocation.address);
        let machine = match pool.available.iter().chain(allocated).next() {
            None => Finding::untried("restart machines", "the pool has no machine"),
            Some(address) => {
                let answer = self.access.log_in(*address).await;
                let answer = answer.map(|_| format!("{} can log in to {address} by SFTP", self.access.user));
                let refused = |problem| {
                    let text = format!("logging in to {address} failed: {problem}");
                    Error::new(ErrorClass::Refused, Message::public(text))
                };
                Finding::tried("restart machines", answer.map_err(refused))
            }
        };
        let read = Finding::tried("read the pool", Ok(contents));
        Ok(vec![read, Finding::tried("return machines to the pool", written), machine])
    }
}
