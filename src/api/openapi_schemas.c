/* Component schemas of the OpenAPI document; ' stands for ". */
#include "api/openapi.h"
#include "base/cleanup.h"

#define TIME "{'type':'string','format':'date-time'}"
#define TIME_OR_NULL "{'type':['string','null'],'format':'date-time'}"
#define STRING "{'type':'string'}"
#define STRING_OR_NULL "{'type':['string','null']}"
#define INTEGER "{'type':'integer'}"
#define INTEGER_OR_NULL "{'type':['integer','null']}"
#define BOOLEAN "{'type':'boolean'}"
#define STRING_MAP "{'type':'object','additionalProperties':{'type':'string'}}"
#define STRING_LIST "{'type':'array','items':{'type':'string'}}"
#define REF(name) "{'$ref':'#/components/schemas/" name "'}"
#define LIST(name)                                                                                      \
    "{'type':'object','required':['items','next_cursor'],'properties':{'items':{'type':'array','items'" \
    ":" REF(name) "},'next_cursor':" STRING_OR_NULL "}}"
/* Names of files: those that are not UTF-8 come, and any may be given, in base64. */
#define B64 "{'type':'string','contentEncoding':'base64'}"
#define NAME(name) "'" name "':" STRING ",'" name "_b64':" B64
#define ONE_OF(name) "'oneOf':[{'required':['" name "']},{'required':['" name "_b64']}]"
#define BOTH(a, b) "'allOf':[{" ONE_OF(a) "},{" ONE_OF(b) "}]"
#define FILE_STAT                                                                             \
    NAME("path")                                                                              \
    ",'type':{'type':'string','enum':['file','directory','symlink','other']},'size':" INTEGER \
    ",'mode':" STRING ",'uid':" INTEGER ",'gid':" INTEGER ",'modified_at':" TIME_OR_NULL
#define COMMAND                                                                                      \
    "'argv':" STRING_LIST ",'shell':" STRING ",'cwd':" STRING ",'env':" STRING_MAP ",'user':" STRING \
    ",'timeout_s':{'type':'number'},'kill_grace_s':{'type':'number'},'journal_mib':" INTEGER         \
    ",'overflow':{'type':'string','enum':['block','drop_oldest']}"

static const struct {
    const char *name;
    const char *text;
} table[] = {
    {"Problem",
     "{'type':'object','required':['type','title','status','detail'],'properties':{'type':{'type':'string',"
     "'format':'uri'},'title':" STRING ",'status':" INTEGER ",'detail':" STRING ",'field':" STRING
     ",'operation_id':" STRING "}}"},
    {"State",
     "{'type':'string','enum':['creating','running','pausing','paused','resuming','suspending','suspended',"
     "'restoring','stopping','stopped','starting','deleting','deleted','failed']}"},
    {"Resources",
     "{'type':'object','additionalProperties':false,'properties':{'vcpus':{'type':'integer','minimum':1},"
     "'memory_mib':{'type':'integer','minimum':128},'disk_mib':{'type':'integer','minimum':1},"
     "'disk_mib_per_s':{'type':'integer','minimum':0,'maximum':65536,'description':'MiB a second that the "
     "disk reads and writes together; 0: no limit'},"
     "'disk_iops':{'description':'Reads and writes a second of the disk together; 0: no limit','oneOf':["
     "{'type':'integer','const':0},{'type':'integer','minimum':10,'maximum':1000000}]}}}"},
    {"TemplateUsed",
     "{'type':'object','required':['ref','digest'],'properties':{'ref':" STRING ",'digest':" STRING "}}"},
    {"Network",
     "{'type':'object','additionalProperties':false,'properties':{'mode':{'type':'string','enum':"
     "['none','egress','open']},'allow':" STRING_LIST ",'deny':" STRING_LIST
     ",'public_ports':{'description':'Ports of the sandbox that need neither key nor token','oneOf':["
     "{'type':'array','maxItems':64,'uniqueItems':true,'items':{'type':'integer','minimum':1,"
     "'maximum':65535}},{'type':'string','enum':['all']},{'type':'null'}]}}}"},
    {"TrafficToken", "{'type':'object','required':['token'],'properties':{'token':" STRING "}}"},
    {"Lifecycle",
     "{'type':'object','additionalProperties':false,'properties':{'idle_timeout_s':" INTEGER_OR_NULL
     ",'on_idle':{'oneOf':[{'type':['string','null'],'enum':['pause','suspend','delete','none',null]},"
     "{'type':'array','minItems':1,'maxItems':3,'description':'Steps that each go further than the one "
     "before, after_s without activity','items':" REF(
         "IdleStep") "}]},'max_lifetime_s':" INTEGER_OR_NULL
                     ",'on_expiry':{'type':['string','null'],'enum':['delete','suspend',null]},'auto_wake':"
                     "{'type':['boolean','null']}}}"},
    {"IdleStep",
     "{'type':'object','additionalProperties':false,'required':['after_s','do'],'properties':{'after_s':"
     "{'type':'integer','minimum':1},'do':{'type':'string','enum':['pause','suspend','delete']}}}"},
    {"SandboxCreate",
     "{'type':'object','additionalProperties':false,'oneOf':[{'required':['template']},{'required':"
     "['snapshot']}],'properties':{'template':" STRING ",'snapshot':" STRING ",'name':" STRING_OR_NULL
     ",'metadata':" STRING_MAP ",'env':" STRING_MAP ",'user':" STRING ",'cwd':" STRING
     ",'resources':" REF("Resources") ",'network':" REF("Network") ",'lifecycle':" REF("Lifecycle") "}}"},
    {"SandboxPatch",
     "{'type':'object','additionalProperties':false,'properties':{'name':" STRING_OR_NULL
     ",'metadata':" STRING_MAP ",'network':" REF("Network") ",'lifecycle':" REF("Lifecycle") "}}"},
    {"Sandbox",
     "{'type':'object','required':['id','state','desired_state','generation','template','engine','"
     "acceleration',"
     "'resources','network','lifecycle','metadata','created_at'],'properties':{'id':" STRING
     ",'name':" STRING_OR_NULL
     ",'state':" REF("State") ",'desired_state':" REF("State") ",'generation':" INTEGER ",'template':" REF(
         "TemplateUsed") ",'engine':" STRING ",'acceleration':" STRING
                         ",'resources':" REF("Resources") ",'network':" REF("Network") ",'lifecycle':" REF(
                             "Lifecycle") ",'metadata':" STRING_MAP ",'created_at':" TIME
                                          ",'started_at':" TIME_OR_NULL ",'last_active_at':" TIME_OR_NULL
                                          ",'expires_at':" TIME_OR_NULL ",'operation_id':" STRING_OR_NULL
                                          ",'failure':{'type':['object','null'],'properties':{'reason'"
                                          ":" STRING ",'message':" STRING "}}}}"},
    {"SandboxList", LIST("Sandbox")},
    {"SandboxOperation", "{'type':'object','required':['sandbox','operation'],'properties':{'sandbox':" REF(
                             "Sandbox") ",'operation':" REF("Operation") "}}"},
    {"Transition", "{'type':'object','required':['at','from','to','reason'],'properties':{'at':" TIME
                   ",'from':" REF("State") ",'to':" REF("State") ",'reason':" STRING
                                                                 ",'operation_id':" STRING_OR_NULL "}}"},
    {"TransitionList", LIST("Transition")},
    {"Snapshot",
     "{'type':'object','required':['id','sandbox_id','name','kind','state','template','resources',"
     "'generation','bytes','packed_bytes','created_at'],'properties':{'id':" STRING ",'sandbox_id':" STRING
     ",'name':" STRING_OR_NULL ",'kind':{'type':'string','enum':['full','disk']},'state':{'type':'string',"
     "'enum':['creating','ready','failed']},'template':" REF("TemplateUsed") ",'resources':" REF(
         "Resources") ",'generation':" INTEGER ",'bytes':{'type':['integer','null']},'packed_bytes':{'type':["
                      "'integer','null']},'created_at':" TIME "}}"},
    {"SnapshotList", LIST("Snapshot")},
    {"SnapshotCreate", "{'type':'object','additionalProperties':false,'properties':{'name':" STRING_OR_NULL
                       ",'kind':{'type':['string','null'],'enum':['full','disk',null],'default':'full'}}}"},
    {"SnapshotOperation",
     "{'type':'object','required':['snapshot','sandbox','operation'],'properties':{'snapshot':" REF(
         "Snapshot") ",'sandbox':" REF("Sandbox") ",'operation':" REF("Operation") "}}"},
    {"Rollback", "{'type':'object','additionalProperties':false,'required':['snapshot_id'],'properties':{'"
                 "snapshot_id':" STRING "}}"},
    {"Fork", "{'type':'object','additionalProperties':false,'properties':{'count':{'type':['integer','null'],"
             "'minimum':1,'maximum':100,'default':1},'name':" STRING_OR_NULL ",'metadata':" STRING_MAP
             ",'lifecycle':" REF("Lifecycle") "}}"},
    {"ForkResult",
     "{'type':'object','required':['children'],'properties':{'children':{'type':'array','items':{'type':"
     "'object','required':['sandbox_id','error'],'properties':{'sandbox_id':" STRING_OR_NULL
     ",'error':{'oneOf':[" REF("Problem") ",{'type':'null'}]}}}}}}"},
    {"SnapshotResult",
     "{'type':'object','required':['snapshot_id','bytes'],'properties':{'snapshot_id':" STRING
     ",'bytes':" INTEGER "}}"},
    {"Operation",
     "{'type':'object','required':['id','kind','status','progress','created_at'],'properties':{'id':" STRING
     ",'kind':" STRING ",'sandbox_id':" STRING_OR_NULL
     ",'status':{'type':'string','enum':['pending','running','succeeded','failed','canceled']},'progress':"
     "{'type':'object','properties':{'phase':" STRING ",'percent':{'type':['number','null']}}},'result':"
     "{'type':['object','null'],'description':'By kind: ForkResult of a fork, SnapshotResult of a "
     "snapshot'},'error':{'type':['object','null']},'created_at':" TIME ",'started_at':" TIME_OR_NULL
     ",'finished_at':" TIME_OR_NULL "}}"},
    {"OperationList", LIST("Operation")},
    {"OperationOnly",
     "{'type':'object','required':['operation'],'properties':{'operation':" REF("Operation") "}}"},
    {"Tag", "{'type':'object','required':['tag','digest'],'properties':{'name':" STRING ",'tag':" STRING
            ",'digest':" STRING "}}"},
    {"TagPut",
     "{'type':'object','additionalProperties':false,'required':['digest'],'properties':{'digest':" STRING
     "}}"},
    {"Template", "{'type':'object','required':['name'],'properties':{'name':" STRING
                 ",'tags':{'type':'array','items':" REF(
                     "Tag") "},'releases':{'type':'array','items':{'type':'object'}}}}"},
    {"TemplateList", LIST("Template")},
    {"ReleaseCreate",
     "{'type':'object','additionalProperties':false,'required':['kind'],'properties':{'kind':{'type':'string'"
     ","
     "'enum':['debian','tar','dir']},'suite':" STRING ",'packages':" STRING_LIST ",'upload':" STRING
     ",'seed_user':" BOOLEAN ",'disk_mib':" INTEGER ",'tag':" STRING "}}"},
    {"Upload", "{'type':'object','required':['upload'],'properties':{'upload':" STRING "}}"},
    {"Key", "{'type':'object','required':['id','role'],'properties':{'id':" STRING ",'name':" STRING
            ",'role':{'type':'string','enum':['admin','user','viewer']},'project':" STRING
            ",'created_at':" TIME "}}"},
    {"KeyList", LIST("Key")},
    {"KeyCreate",
     "{'type':'object','additionalProperties':false,'required':['role'],'properties':{'name':" STRING
     ",'role':{'type':'string','enum':['admin','user','viewer']},'project':" STRING "}}"},
    {"KeyCreated",
     "{'type':'object','required':['id','key','role'],'properties':{'id':" STRING ",'key':" STRING
     ",'name':" STRING ",'role':" STRING ",'project':" STRING ",'created_at':" TIME "}}"},
    {"Version",
     "{'type':'object','required':['version','api','engine'],'properties':{'version':" STRING ",'api':" STRING
     ",'engine':" STRING ",'acceleration':" STRING ",'vmm_version':" STRING ",'engine_reason':" STRING
     ",'kernel':" STRING_OR_NULL ",'components':{'type':'array','items':" REF("Component") "}}}"},
    {"Component",
     "{'type':'object','required':['name','kind','version','released','released_from','age_days'],"
     "'properties':{'name':" STRING ",'kind':{'type':'string','enum':['server','agent','vmm',"
     "'kernel','initramfs','library']},'version':" STRING ",'package':" STRING_OR_NULL
     ",'released':" STRING_OR_NULL ",'released_from':{'type':'string','enum':['release',"
     "'changelog','series','file','unknown']},'age_days':{'type':['integer','null']}}}"},
    {"Status", "{'type':'object','required':['status'],'properties':{'status':" STRING "}}"},
    {"Doctor", "{'type':'object','required':['can_run','checks'],'properties':{'can_run':" BOOLEAN
               ",'engine':" STRING ",'acceleration':" STRING ",'reason':" STRING
               ",'checks':{'type':'array','items':{'type':'object','properties':{'name':" STRING
               ",'status':{'type':'string','enum':['ok','degraded','missing']},'detail':" STRING
               ",'advice':" STRING "}}}}}"},
    {"SessionCreate",
     "{'type':'object','additionalProperties':false,'properties':{" COMMAND ",'stdin':" BOOLEAN
     ",'pty':{'type':'object','required':['rows','cols'],'properties':{'rows':" INTEGER ",'cols':" INTEGER
     ",'term':" STRING "}},'start':{'type':'string','enum':['attach','now']},'stdin_on_detach':{'type':"
     "'string','enum':['keep','close']}},'oneOf':[{'required':['argv']},"
     "{'required':['shell']}]}"},
    {"Session", "{'type':'object','required':['id','process_id','sandbox_id'],'properties':{'id':" STRING
                ",'process_id':" STRING ",'sandbox_id':" STRING ",'created_at':" TIME "}}"},
    {"SessionCreated", "{'type':'object','required':['session','attach'],'properties':{'session':" REF(
                           "Session") ",'attach':{'type':'object','properties':{'url':" STRING
                                      ",'token':" STRING ",'expires_at':" TIME "}}}}"},
    {"ExecRequest", "{'type':'object','additionalProperties':false,'properties':{" COMMAND
                    ",'stdin_b64':" STRING "},'oneOf':[{'required':['argv']},{'required':['shell']}]}"},
    {"ExecResult",
     "{'type':'object','required':['process','stdout','stderr','encoding','truncated'],'properties':{'"
     "process':" REF("Process") ",'stdout':" STRING ",'stderr':" STRING
                                ",'encoding':{'type':'string','enum':['utf-8','base64']},'truncated':" BOOLEAN
                                "}}"},
    {"ProcessResult",
     "{'type':['object','null'],'properties':{'reason':{'type':'string','enum':['exit','signal','timeout',"
     "'oom_killed','start_failed','sandbox_gone']},'exit_code':" INTEGER_OR_NULL ",'signal':" STRING_OR_NULL
     ",'message':" STRING_OR_NULL ",'stdout_bytes':" INTEGER ",'stderr_bytes':" INTEGER ",'cpu_ms':" INTEGER
     ",'max_rss_bytes':" INTEGER "}}"},
    {"Process", "{'type':'object','required':['id','argv','state','result'],'properties':{'id':" STRING
                ",'argv':" STRING_LIST
                ",'state':{'type':'string','enum':['created','running','exited']},'pid':" INTEGER_OR_NULL
                ",'started_at':" TIME_OR_NULL ",'finished_at':" TIME_OR_NULL
                ",'result':" REF("ProcessResult") ",'stdin_offset':" INTEGER_OR_NULL "}}"},
    {"ProcessList", LIST("Process")},
    {"SignalRequest",
     "{'type':'object','additionalProperties':false,'required':['signal'],'properties':{'signal':" STRING
     ",'tree':" BOOLEAN ",'kill_grace_s':{'type':'number'}}}"},
    {"FileStat", "{'type':'object','required':['path','type','size'],'properties':{" FILE_STAT "}}"},
    {"FileEntry", "{'type':'object','required':['name','path','type','size'],'properties':{'name':" STRING
                  ",'name_b64':" B64 "," FILE_STAT ",'target':" STRING ",'target_b64':" B64 "}}"},
    {"FileList", LIST("FileEntry")},
    {"FilePath", "{'type':'object','required':['path'],'properties':{" NAME("path") "}}"},
    {"MkdirRequest", "{'type':'object','additionalProperties':false,'properties':{" NAME(
                         "path") ",'parents':" BOOLEAN ",'user':" STRING "}," ONE_OF("path") "}"},
    {"MoveRequest",
     "{'type':'object','additionalProperties':false,'properties':{" NAME("from") "," NAME(
         "to") ",'replace':" BOOLEAN ",'parents':" BOOLEAN ",'user':" STRING "}," BOTH("from", "to") "}"},
    {"CopyRequest", "{'type':'object','additionalProperties':false,'properties':{" NAME("from") "," NAME(
                        "to") ",'recursive':" BOOLEAN ",'replace':" BOOLEAN ",'parents':" BOOLEAN
                              ",'user':" STRING "}," BOTH("from", "to") "}"},
    {"ChmodRequest",
     "{'type':'object','additionalProperties':false,'properties':{" NAME(
         "path") ",'mode':{'type':'string','pattern':'^[0-7]{1,5}$'},'owner':{'type':'string','description':"
                 "'USER, USER:GROUP or :GROUP, names or numbers'},'recursive':" BOOLEAN ",'user':" STRING
                 "},'allOf':[{" ONE_OF(
                     "path") "},{'anyOf':[{'required':['mode']},{'required':['owner']}]}]}"},
    {"SymlinkRequest", "{'type':'object','additionalProperties':false,'properties':{" NAME("path") "," NAME(
                           "target") ",'parents':" BOOLEAN ",'user':" STRING "}," BOTH("path", "target") "}"},
};

bool openapi_schema(size_t index, const char **ret_name, const char **ret_text)
{
    if (index >= ARRAY_LEN(table))
        return false;
    *ret_name = table[index].name;
    *ret_text = table[index].text;
    return true;
}
