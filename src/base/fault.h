/* Named points between two side effects, where a test can stop or kill the program.
 *
 * Off unless the environment has SPACE_FAULT when fault_init is called:
 *   SPACE_FAULT="NAME:kill"      SIGKILL to itself when the point NAME is passed
 *   SPACE_FAULT="NAME:stop"      SIGSTOP to itself: the test kills whom it likes, and sends SIGCONT
 *   SPACE_FAULT="NAME:ACTION:N"  at the Nth time (default 1)
 *   SPACE_FAULT="@FILE"          what FILE holds, looked at anew at every point; nothing when it is empty
 *   SPACE_FAULT_LOG=FILE         appends the name of every point that is passed, before anything else
 *
 * Names are "verb.step"; docs/testing.md tells how they are used. */
#pragma once

/* Reads the environment, once, at the start of a program. */
void fault_init(void);

/* Passes a point, on any thread. Nothing but a look at one flag when faults are off. */
void fault_point(const char *name);
