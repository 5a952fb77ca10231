# Writes OUTPUT, a source with the commit of this tree, at every build; the file changes only when the commit does.
execute_process(COMMAND git describe --always --dirty --abbrev=12 WORKING_DIRECTORY ${CMAKE_CURRENT_LIST_DIR}
                OUTPUT_VARIABLE COMMIT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
execute_process(COMMAND git ls-files --error-unmatch commit.cmake WORKING_DIRECTORY ${CMAKE_CURRENT_LIST_DIR}
                RESULT_VARIABLE FOREIGN OUTPUT_QUIET ERROR_QUIET)  # in a repository that only surrounds this tree
if(FOREIGN OR NOT COMMIT)
  set(COMMIT "of an unknown commit (built without git)")
endif()
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT [[
namespace goat {
extern const char* const build_commit;
const char* const build_commit = "@COMMIT@";
}  // namespace goat
]] @ONLY)
