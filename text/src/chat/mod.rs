//! Chat templates: Jinja as transformers sets it up. A template comes from strangers, so its size, stack, steps, output and numbers
//! are bounded. A template is parsed once and rendered often.

mod conversation;
mod environment;
mod filters;
mod json;
mod methods;
mod named;
mod numbers;
mod operators;
mod output;
mod rewriter;
mod source;
mod stack;
mod tags;
mod tokens;

use std::sync::Arc;

use chrono::NaiveDateTime;
use minijinja::value::Value;
use minijinja::{Environment, Error, ErrorKind};

use crate::guard::{Fault, RAISED};
pub use conversation::Conversation;
pub use named::source_of;
use output::{Output, Progress};
use stack::on_large_stack;

/// The templates in use have up to about 20 KB.
const MAX_TEMPLATE_BYTES: usize = 256 << 10;
/// Instructions of a template; 64 bytes of made text count as one. Far above what a long conversation needs.
const FUEL: u64 = 2_000_000;

const NAME: &str = "chat_template";
/// The key of the render's `Progress` among the variables. It is no identifier, so no template can name it.
const PROGRESS: &str = "render progress";

pub struct Template {
    environment: Environment<'static>,
}

/// A rendered conversation and the ranges of its generation blocks, in bytes.
pub struct Rendered {
    pub text: String,
    pub spans: Vec<(u64, u64)>,
}

impl Template {
    pub fn open(source: &str) -> Result<Self, Fault> {
        if source.len() > MAX_TEMPLATE_BYTES {
            return Err(Fault::new(format!("it has {} bytes, more than {MAX_TEMPLATE_BYTES}", source.len())));
        }
        let source = source::prepared(source)?;
        on_large_stack(move || {
            let mut environment = environment::new().map_err(fault_of)?;
            environment.set_fuel(Some(FUEL));
            environment.add_template_owned(NAME, source).map_err(fault_of)?;
            Ok(Template { environment })
        })
    }

    /// Renders the first `count` messages. `now`: the local time that `strftime_now` prints, `2026-03-09T07:05:03`; empty for the
    /// present time.
    pub fn render(
        &self,
        conversation: &Conversation,
        count: usize,
        add_generation_prompt: Option<bool>,
        now: &str,
    ) -> Result<Rendered, Fault> {
        on_large_stack(|| {
            let progress = Progress::new(time_of(now)?);
            let variables =
                conversation.variables(count, add_generation_prompt, Value::from_dyn_object(progress.clone()))?;
            self.rendered(variables, progress)
        })
    }

    fn rendered(&self, variables: Value, progress: Arc<Progress>) -> Result<Rendered, Fault> {
        let mut output = Output::new(progress.clone());
        let template = self.environment.get_template(NAME).map_err(fault_of)?;
        template
            .render_captured_to(variables, &mut output)
            .map_err(|error| progress.fault_or(error))
            .map_err(fault_of)?;
        Ok(Rendered { text: output.into_text(), spans: progress.spans() })
    }
}

fn time_of(now: &str) -> Result<NaiveDateTime, Fault> {
    if now.is_empty() {
        return Ok(chrono::Local::now().naive_local());
    }
    now.parse()
        .map_err(|_| Fault::new(format!("`now` should be a local time such as 2026-03-09T07:05:03, not {now:?}")))
}

fn fault_of(error: Error) -> Fault {
    let line = error.line().map_or(String::new(), |line| format!("line {line}: "));
    let mut cause: &dyn std::error::Error = &error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    if let Some(raised) = cause.downcast_ref::<environment::Raised>() {
        return Fault { code: RAISED, message: format!("{line}{}", raised.0) };
    }
    let message = match (error.kind(), error.detail()) {
        (ErrorKind::OutOfFuel, _) => "it takes more steps than a conversation can need".to_string(),
        (_, Some(detail)) => detail.to_string(),
        _ => error.to_string(),
    };
    Fault::new(format!("{line}{message}"))
}
